"""Field numbers of the Kubernetes messages that clients send in protobuf.

One entry per message: ``name=number:type``. Types: s string, i integer, b bool, y bytes (base64 in JSON), T Time,
U MicroTime, Q Quantity, X IntOrString, J embedded JSON, or the name of another message. Marks: * repeated, % the
values of a map with string keys, ? a pointer (zero is meaningful), ^ inlined into its parent in JSON.
"""

from __future__ import annotations

# Kinds that may be the top of a body.
KINDS = frozenset(
    (
        "Binding", "ConfigMap", "DaemonSet", "DeleteOptions", "Deployment", "Endpoints", "Event", "Eviction",
        "Job", "Lease", "LocalSubjectAccessReview", "Namespace", "Node", "PersistentVolumeClaim", "Pod",
        "ReplicaSet", "Scale", "Secret", "SelfSubjectAccessReview", "SelfSubjectReview",
        "SelfSubjectRulesReview", "Service", "ServiceAccount", "StatefulSet", "SubjectAccessReview",
    )
)  # fmt: skip

_META = {
    "ObjectMeta": (
        "name=1:s generateName=2:s namespace=3:s selfLink=4:s uid=5:s resourceVersion=6:s generation=7:i "
        "creationTimestamp=8:T deletionTimestamp=9:T deletionGracePeriodSeconds=10:i? labels=11:s% "
        "annotations=12:s% ownerReferences=13:OwnerReference* finalizers=14:s* "
        "managedFields=17:ManagedFieldsEntry*"
    ),
    "OwnerReference": "kind=1:s name=3:s uid=4:s apiVersion=5:s controller=6:b? blockOwnerDeletion=7:b?",
    "ManagedFieldsEntry": (
        "manager=1:s operation=2:s apiVersion=3:s time=4:T fieldsType=6:s fieldsV1=7:J subresource=8:s"
    ),
    "LabelSelector": "matchLabels=1:s% matchExpressions=2:Requirement*",
    "Requirement": "key=1:s operator=2:s values=3:s*",
    "Condition": "type=1:s status=2:s observedGeneration=3:i lastTransitionTime=4:T reason=5:s message=6:s",
    "Preconditions": "uid=1:s? resourceVersion=2:s?",
    "DeleteOptions": (
        "gracePeriodSeconds=1:i? preconditions=2:Preconditions? orphanDependents=3:b? propagationPolicy=4:s? "
        "dryRun=5:s*"
    ),
}

_CORE = {
    "ConfigMap": "metadata=1:ObjectMeta? data=2:s% binaryData=3:y% immutable=4:b?",
    "Secret": "metadata=1:ObjectMeta? data=2:y% type=3:s stringData=4:s% immutable=5:b?",
    "Namespace": "metadata=1:ObjectMeta? spec=2:NamespaceSpec? status=3:NamespaceStatus?",
    "NamespaceSpec": "finalizers=1:s*",
    "NamespaceStatus": "phase=1:s conditions=2:NamespaceCondition*",
    "NamespaceCondition": "type=1:s status=2:s lastTransitionTime=4:T reason=5:s message=6:s",
    "ServiceAccount": (
        "metadata=1:ObjectMeta? secrets=2:ObjectReference* imagePullSecrets=3:LocalObjectReference* "
        "automountServiceAccountToken=4:b?"
    ),
    "ObjectReference": (
        "kind=1:s namespace=2:s name=3:s uid=4:s apiVersion=5:s resourceVersion=6:s fieldPath=7:s"
    ),
    "LocalObjectReference": "name=1:s",
    "Binding": "metadata=1:ObjectMeta? target=2:ObjectReference?",
    "Event": (
        "metadata=1:ObjectMeta? involvedObject=2:ObjectReference? reason=3:s message=4:s source=5:EventSource? "
        "firstTimestamp=6:T lastTimestamp=7:T count=8:i type=9:s eventTime=10:U series=11:EventSeries? "
        "action=12:s related=13:ObjectReference? reportingComponent=14:s reportingInstance=15:s"
    ),
    "EventSource": "component=1:s host=2:s",
    "EventSeries": "count=1:i lastObservedTime=2:U",
    "Endpoints": "metadata=1:ObjectMeta? subsets=2:EndpointSubset*",
    "EndpointSubset": "addresses=1:EndpointAddress* notReadyAddresses=2:EndpointAddress* ports=3:EndpointPort*",
    "EndpointAddress": "ip=1:s targetRef=2:ObjectReference? hostname=3:s nodeName=4:s?",
    "EndpointPort": "name=1:s port=2:i protocol=3:s appProtocol=4:s?",
    "Service": "metadata=1:ObjectMeta? spec=2:ServiceSpec? status=3:ServiceStatus?",
    "ServiceSpec": (
        "ports=1:ServicePort* selector=2:s% clusterIP=3:s type=4:s externalIPs=5:s* sessionAffinity=7:s "
        "loadBalancerIP=8:s loadBalancerSourceRanges=9:s* externalName=10:s externalTrafficPolicy=11:s "
        "healthCheckNodePort=12:i publishNotReadyAddresses=13:b sessionAffinityConfig=14:SessionAffinityConfig? "
        "ipFamilyPolicy=17:s? clusterIPs=18:s* ipFamilies=19:s* allocateLoadBalancerNodePorts=20:b? "
        "loadBalancerClass=21:s? internalTrafficPolicy=22:s? trafficDistribution=23:s?"
    ),
    "SessionAffinityConfig": "clientIP=1:ClientIPConfig?",
    "ClientIPConfig": "timeoutSeconds=1:i?",
    "ServicePort": "name=1:s protocol=2:s port=3:i targetPort=4:X nodePort=5:i appProtocol=6:s?",
    "ServiceStatus": "loadBalancer=1:LoadBalancerStatus? conditions=2:Condition*",
    "LoadBalancerStatus": "ingress=1:LoadBalancerIngress*",
    "LoadBalancerIngress": "ip=1:s hostname=2:s ipMode=3:s?",
    "Node": "metadata=1:ObjectMeta? spec=2:NodeSpec? status=3:NodeStatus?",
    "NodeSpec": "podCIDR=1:s externalID=2:s providerID=3:s unschedulable=4:b taints=5:Taint* podCIDRs=7:s*",
    "Taint": "key=1:s value=2:s effect=3:s timeAdded=4:T",
    "NodeStatus": (
        "capacity=1:Q% allocatable=2:Q% phase=3:s conditions=4:NodeCondition* addresses=5:NodeAddress* "
        "daemonEndpoints=6:NodeDaemonEndpoints? nodeInfo=7:NodeSystemInfo? images=8:ContainerImage* "
        "volumesInUse=9:s* volumesAttached=10:AttachedVolume*"
    ),
    "NodeCondition": ("type=1:s status=2:s lastHeartbeatTime=3:T lastTransitionTime=4:T reason=5:s message=6:s"),
    "NodeAddress": "type=1:s address=2:s",
    "NodeDaemonEndpoints": "kubeletEndpoint=1:DaemonEndpoint?",
    "DaemonEndpoint": "Port=1:i",
    "NodeSystemInfo": (
        "machineID=1:s systemUUID=2:s bootID=3:s kernelVersion=4:s osImage=5:s containerRuntimeVersion=6:s "
        "kubeletVersion=7:s kubeProxyVersion=8:s operatingSystem=9:s architecture=10:s"
    ),
    "ContainerImage": "names=1:s* sizeBytes=2:i",
    "AttachedVolume": "name=1:s devicePath=2:s",
    "PersistentVolumeClaim": "metadata=1:ObjectMeta? spec=2:ClaimSpec? status=3:ClaimStatus?",
    "ClaimSpec": (
        "accessModes=1:s* resources=2:VolumeResources? volumeName=3:s selector=4:LabelSelector? "
        "storageClassName=5:s? volumeMode=6:s? dataSource=7:TypedReference? dataSourceRef=8:TypedReference?"
    ),
    "VolumeResources": "limits=1:Q% requests=2:Q%",
    "TypedReference": "apiGroup=1:s? kind=2:s name=3:s namespace=4:s?",
    "ClaimStatus": "phase=1:s accessModes=2:s* capacity=3:Q%",
}

_PODS = {
    "Pod": "metadata=1:ObjectMeta? spec=2:PodSpec? status=3:PodStatus?",
    "PodTemplateSpec": "metadata=1:ObjectMeta? spec=2:PodSpec?",
    "PodSpec": (
        "volumes=1:Volume* containers=2:Container* restartPolicy=3:s terminationGracePeriodSeconds=4:i? "
        "activeDeadlineSeconds=5:i? dnsPolicy=6:s nodeSelector=7:s% serviceAccountName=8:s serviceAccount=9:s "
        "nodeName=10:s hostNetwork=11:b hostPID=12:b hostIPC=13:b securityContext=14:PodSecurityContext? "
        "imagePullSecrets=15:LocalObjectReference* hostname=16:s subdomain=17:s affinity=18:Affinity? "
        "schedulerName=19:s initContainers=20:Container* automountServiceAccountToken=21:b? "
        "tolerations=22:Toleration* hostAliases=23:HostAlias* priorityClassName=24:s priority=25:i? "
        "dnsConfig=26:PodDNSConfig? shareProcessNamespace=27:b? readinessGates=28:ReadinessGate* "
        "runtimeClassName=29:s? enableServiceLinks=30:b? preemptionPolicy=31:s? overhead=32:Q% "
        "topologySpreadConstraints=33:TopologySpreadConstraint* setHostnameAsFQDN=35:b? os=36:PodOS? "
        "hostUsers=37:b? schedulingGates=38:ReadinessName*"
    ),
    "PodOS": "name=1:s",
    "ReadinessName": "name=1:s",
    "ReadinessGate": "conditionType=1:s",
    "HostAlias": "ip=1:s hostnames=2:s*",
    "PodDNSConfig": "nameservers=1:s* searches=2:s* options=3:DNSOption*",
    "DNSOption": "name=1:s value=2:s?",
    "Toleration": "key=1:s operator=2:s value=3:s effect=4:s tolerationSeconds=5:i?",
    "TopologySpreadConstraint": (
        "maxSkew=1:i topologyKey=2:s whenUnsatisfiable=3:s labelSelector=4:LabelSelector? minDomains=5:i? "
        "nodeAffinityPolicy=6:s? nodeTaintsPolicy=7:s? matchLabelKeys=8:s*"
    ),
    "PodSecurityContext": (
        "seLinuxOptions=1:SELinuxOptions? runAsUser=2:i? runAsNonRoot=3:b? supplementalGroups=4:i* fsGroup=5:i? "
        "runAsGroup=6:i? sysctls=7:NameValue* fsGroupChangePolicy=9:s? seccompProfile=10:SeccompProfile?"
    ),
    "SELinuxOptions": "user=1:s role=2:s type=3:s level=4:s",
    "SeccompProfile": "type=1:s localhostProfile=2:s?",
    "NameValue": "name=1:s value=2:s",
    "Container": (
        "name=1:s image=2:s command=3:s* args=4:s* workingDir=5:s ports=6:ContainerPort* env=7:EnvVar* "
        "resources=8:ResourceRequirements? volumeMounts=9:VolumeMount* livenessProbe=10:Probe? "
        "readinessProbe=11:Probe? lifecycle=12:Lifecycle? terminationMessagePath=13:s imagePullPolicy=14:s "
        "securityContext=15:SecurityContext? stdin=16:b stdinOnce=17:b tty=18:b envFrom=19:EnvFromSource* "
        "terminationMessagePolicy=20:s volumeDevices=21:VolumeDevice* startupProbe=22:Probe? restartPolicy=24:s?"
    ),
    "ContainerPort": "name=1:s hostPort=2:i containerPort=3:i protocol=4:s hostIP=5:s",
    "EnvVar": "name=1:s value=2:s valueFrom=3:EnvVarSource?",
    "EnvVarSource": (
        "fieldRef=1:FieldSelector? resourceFieldRef=2:ResourceFieldSelector? configMapKeyRef=3:KeySelector? "
        "secretKeyRef=4:KeySelector?"
    ),
    "FieldSelector": "apiVersion=1:s fieldPath=2:s",
    "ResourceFieldSelector": "containerName=1:s resource=2:s divisor=3:Q",
    "KeySelector": "reference=1:LocalObjectReference^ key=2:s optional=3:b?",
    "EnvFromSource": "prefix=1:s configMapRef=2:EnvSource? secretRef=3:EnvSource?",
    "EnvSource": "reference=1:LocalObjectReference^ optional=2:b?",
    "ResourceRequirements": "limits=1:Q% requests=2:Q% claims=3:ReadinessName*",
    "VolumeMount": (
        "name=1:s readOnly=2:b mountPath=3:s subPath=4:s mountPropagation=5:s? subPathExpr=6:s "
        "recursiveReadOnly=7:s?"
    ),
    "VolumeDevice": "name=1:s devicePath=2:s",
    "Probe": (
        "handler=1:Handler^ initialDelaySeconds=2:i timeoutSeconds=3:i periodSeconds=4:i successThreshold=5:i "
        "failureThreshold=6:i terminationGracePeriodSeconds=7:i?"
    ),
    "Handler": "exec=1:ExecAction? httpGet=2:HTTPGetAction? tcpSocket=3:TCPSocketAction? grpc=4:GRPCAction?",
    "LifecycleHandler": (
        "exec=1:ExecAction? httpGet=2:HTTPGetAction? tcpSocket=3:TCPSocketAction? sleep=4:SleepAction?"
    ),
    "Lifecycle": "postStart=1:LifecycleHandler? preStop=2:LifecycleHandler? stopSignal=3:s?",
    "ExecAction": "command=1:s*",
    "HTTPGetAction": "path=1:s port=2:X? host=3:s scheme=4:s httpHeaders=5:NameValue*",
    "TCPSocketAction": "port=1:X? host=2:s",
    "GRPCAction": "port=1:i service=2:s?",
    "SleepAction": "seconds=1:i?",
    "SecurityContext": (
        "capabilities=1:Capabilities? privileged=2:b? seLinuxOptions=3:SELinuxOptions? runAsUser=4:i? "
        "runAsNonRoot=5:b? readOnlyRootFilesystem=6:b? allowPrivilegeEscalation=7:b? runAsGroup=8:i? "
        "procMount=9:s? seccompProfile=11:SeccompProfile?"
    ),
    "Capabilities": "add=1:s* drop=2:s*",
    "Affinity": "nodeAffinity=1:NodeAffinity? podAffinity=2:PodAffinity? podAntiAffinity=3:PodAffinity?",
    "NodeAffinity": (
        "requiredDuringSchedulingIgnoredDuringExecution=1:NodeSelector? "
        "preferredDuringSchedulingIgnoredDuringExecution=2:PreferredTerm*"
    ),
    "NodeSelector": "nodeSelectorTerms=1:NodeSelectorTerm*",
    "NodeSelectorTerm": "matchExpressions=1:Requirement* matchFields=2:Requirement*",
    "PreferredTerm": "weight=1:i preference=2:NodeSelectorTerm?",
    "PodAffinity": (
        "requiredDuringSchedulingIgnoredDuringExecution=1:PodAffinityTerm* "
        "preferredDuringSchedulingIgnoredDuringExecution=2:WeightedTerm*"
    ),
    "PodAffinityTerm": (
        "labelSelector=1:LabelSelector? namespaces=2:s* topologyKey=3:s namespaceSelector=4:LabelSelector? "
        "matchLabelKeys=5:s* mismatchLabelKeys=6:s*"
    ),
    "WeightedTerm": "weight=1:i podAffinityTerm=2:PodAffinityTerm?",
    "PodStatus": (
        "phase=1:s conditions=2:PodCondition* message=3:s reason=4:s hostIP=5:s podIP=6:s startTime=7:T "
        "containerStatuses=8:ContainerStatus* qosClass=9:s initContainerStatuses=10:ContainerStatus* "
        "nominatedNodeName=11:s podIPs=12:PodIP* ephemeralContainerStatuses=13:ContainerStatus* "
        "hostIPs=16:PodIP* observedGeneration=17:i"
    ),
    "PodIP": "ip=1:s",
    "PodCondition": (
        "type=1:s status=2:s lastProbeTime=3:T lastTransitionTime=4:T reason=5:s message=6:s "
        "observedGeneration=7:i"
    ),
    "ContainerStatus": (
        "name=1:s state=2:ContainerState? lastState=3:ContainerState? ready=4:b? restartCount=5:i? image=6:s "
        "imageID=7:s containerID=8:s started=9:b?"
    ),
    "ContainerState": "waiting=1:Waiting? running=2:Running? terminated=3:Terminated?",
    "Waiting": "reason=1:s message=2:s",
    "Running": "startedAt=1:T",
    "Terminated": ("exitCode=1:i? signal=2:i reason=3:s message=4:s startedAt=5:T finishedAt=6:T containerID=7:s"),
}

_VOLUMES = {
    "Volume": "name=1:s source=2:VolumeSource^",
    "VolumeSource": (
        "hostPath=1:HostPath? emptyDir=2:EmptyDir? secret=6:SecretVolume? nfs=7:NFSVolume? "
        "persistentVolumeClaim=10:ClaimVolume? downwardAPI=16:DownwardAPI? configMap=19:ConfigMapVolume? "
        "projected=26:Projected? csi=28:CSIVolume?"
    ),
    "HostPath": "path=1:s type=2:s?",
    "EmptyDir": "medium=1:s sizeLimit=2:Q",
    "SecretVolume": "secretName=1:s items=2:KeyToPath* defaultMode=3:i? optional=4:b?",
    "NFSVolume": "server=1:s path=2:s readOnly=3:b",
    "ClaimVolume": "claimName=1:s readOnly=2:b",
    "DownwardAPI": "items=1:DownwardFile* defaultMode=2:i?",
    "DownwardFile": "path=1:s fieldRef=2:FieldSelector? resourceFieldRef=3:ResourceFieldSelector? mode=4:i?",
    "ConfigMapVolume": "reference=1:LocalObjectReference^ items=2:KeyToPath* defaultMode=3:i? optional=4:b?",
    "KeyToPath": "key=1:s path=2:s mode=3:i?",
    "Projected": "sources=1:VolumeProjection* defaultMode=2:i?",
    "VolumeProjection": (
        "secret=1:ObjectProjection? downwardAPI=2:DownwardAPI? configMap=3:ObjectProjection? "
        "serviceAccountToken=4:TokenProjection?"
    ),
    "ObjectProjection": "reference=1:LocalObjectReference^ items=2:KeyToPath* optional=4:b?",
    "TokenProjection": "audience=1:s expirationSeconds=2:i? path=3:s",
    "CSIVolume": (
        "driver=1:s readOnly=2:b? fsType=3:s? volumeAttributes=4:s% nodePublishSecretRef=5:LocalObjectReference?"
    ),
}

_WORKLOADS = {
    "Deployment": "metadata=1:ObjectMeta? spec=2:DeploymentSpec? status=3:DeploymentStatus?",
    "DeploymentSpec": (
        "replicas=1:i? selector=2:LabelSelector? template=3:PodTemplateSpec? strategy=4:DeploymentStrategy? "
        "minReadySeconds=5:i revisionHistoryLimit=6:i? paused=7:b progressDeadlineSeconds=9:i?"
    ),
    "DeploymentStrategy": "type=1:s rollingUpdate=2:RollingUpdate?",
    "RollingUpdate": "maxUnavailable=1:X? maxSurge=2:X?",
    "DeploymentStatus": (
        "observedGeneration=1:i replicas=2:i updatedReplicas=3:i availableReplicas=4:i unavailableReplicas=5:i "
        "conditions=6:DeploymentCondition* readyReplicas=7:i collisionCount=8:i? terminatingReplicas=9:i?"
    ),
    "DeploymentCondition": (
        "type=1:s status=2:s reason=4:s message=5:s lastUpdateTime=6:T lastTransitionTime=7:T"
    ),
    "ReplicaSet": "metadata=1:ObjectMeta? spec=2:ReplicaSetSpec? status=3:ReplicaSetStatus?",
    "ReplicaSetSpec": "replicas=1:i? selector=2:LabelSelector? template=3:PodTemplateSpec? minReadySeconds=4:i",
    "ReplicaSetStatus": (
        "replicas=1:i? fullyLabeledReplicas=2:i observedGeneration=3:i readyReplicas=4:i availableReplicas=5:i "
        "conditions=6:WorkloadCondition* terminatingReplicas=7:i?"
    ),
    "WorkloadCondition": "type=1:s status=2:s lastTransitionTime=3:T reason=4:s message=5:s",
    "StatefulSet": "metadata=1:ObjectMeta? spec=2:StatefulSetSpec? status=3:StatefulSetStatus?",
    "StatefulSetSpec": (
        "replicas=1:i? selector=2:LabelSelector? template=3:PodTemplateSpec? "
        "volumeClaimTemplates=4:PersistentVolumeClaim* serviceName=5:s podManagementPolicy=6:s "
        "updateStrategy=7:StatefulSetStrategy? revisionHistoryLimit=8:i? minReadySeconds=9:i"
    ),
    "StatefulSetStrategy": "type=1:s rollingUpdate=2:StatefulSetRolling?",
    "StatefulSetRolling": "partition=1:i? maxUnavailable=2:X?",
    "StatefulSetStatus": (
        "observedGeneration=1:i replicas=2:i? readyReplicas=3:i currentReplicas=4:i updatedReplicas=5:i "
        "currentRevision=6:s updateRevision=7:s collisionCount=9:i? conditions=10:WorkloadCondition* "
        "availableReplicas=11:i"
    ),
    "DaemonSet": "metadata=1:ObjectMeta? spec=2:DaemonSetSpec? status=3:DaemonSetStatus?",
    "DaemonSetSpec": (
        "selector=1:LabelSelector? template=2:PodTemplateSpec? updateStrategy=3:DaemonSetStrategy? "
        "minReadySeconds=4:i revisionHistoryLimit=6:i?"
    ),
    "DaemonSetStrategy": "type=1:s rollingUpdate=2:RollingUpdate?",
    "DaemonSetStatus": (
        "currentNumberScheduled=1:i? numberMisscheduled=2:i? desiredNumberScheduled=3:i? numberReady=4:i? "
        "observedGeneration=5:i updatedNumberScheduled=6:i numberAvailable=7:i numberUnavailable=8:i "
        "collisionCount=9:i? conditions=10:WorkloadCondition*"
    ),
    "Job": "metadata=1:ObjectMeta? spec=2:JobSpec? status=3:JobStatus?",
    "JobSpec": (
        "parallelism=1:i? completions=2:i? activeDeadlineSeconds=3:i? selector=4:LabelSelector? "
        "manualSelector=5:b? template=6:PodTemplateSpec? backoffLimit=7:i? ttlSecondsAfterFinished=8:i? "
        "completionMode=9:s? suspend=10:b?"
    ),
    "JobStatus": (
        "conditions=1:JobCondition* startTime=2:T completionTime=3:T active=4:i succeeded=5:i failed=6:i"
    ),
    "JobCondition": "type=1:s status=2:s lastProbeTime=3:T lastTransitionTime=4:T reason=5:s message=6:s",
    "Scale": "metadata=1:ObjectMeta? spec=2:ScaleSpec? status=3:ScaleStatus?",
    "ScaleSpec": "replicas=1:i",
    "ScaleStatus": "replicas=1:i? selector=2:s",
    "Lease": "metadata=1:ObjectMeta? spec=2:LeaseSpec?",
    "LeaseSpec": (
        "holderIdentity=1:s? leaseDurationSeconds=2:i? acquireTime=3:U renewTime=4:U leaseTransitions=5:i? "
        "strategy=6:s? preferredHolder=7:s?"
    ),
    "Eviction": "metadata=1:ObjectMeta? deleteOptions=2:DeleteOptions?",
}

_REVIEWS = {
    "SelfSubjectAccessReview": "metadata=1:ObjectMeta? spec=2:AccessReviewSpec? status=3:AccessReviewStatus?",
    "SubjectAccessReview": "metadata=1:ObjectMeta? spec=2:SubjectReviewSpec? status=3:AccessReviewStatus?",
    "LocalSubjectAccessReview": "metadata=1:ObjectMeta? spec=2:SubjectReviewSpec? status=3:AccessReviewStatus?",
    "AccessReviewSpec": "resourceAttributes=1:ResourceAttributes? nonResourceAttributes=2:NonResourceAttributes?",
    "SubjectReviewSpec": (
        "resourceAttributes=1:ResourceAttributes? nonResourceAttributes=2:NonResourceAttributes? user=3:s "
        "groups=4:s* uid=6:s"
    ),
    "ResourceAttributes": "namespace=1:s verb=2:s group=3:s version=4:s resource=5:s subresource=6:s name=7:s",
    "NonResourceAttributes": "path=1:s verb=2:s",
    "AccessReviewStatus": "allowed=1:b reason=2:s evaluationError=3:s denied=4:b",
    "SelfSubjectRulesReview": "metadata=1:ObjectMeta? spec=2:RulesReviewSpec? status=3:RulesReviewStatus?",
    "RulesReviewSpec": "namespace=1:s",
    "RulesReviewStatus": "incomplete=3:b evaluationError=4:s",
    "SelfSubjectReview": "metadata=1:ObjectMeta? status=2:SelfReviewStatus?",
    "SelfReviewStatus": "userInfo=1:UserInfo?",
    "UserInfo": "username=1:s uid=2:s groups=3:s*",
}

# Never sent as protobuf by the clients at hand; here for the types of its fields.
_DEFINITIONS = {
    "CustomResourceDefinition": "metadata=1:ObjectMeta? spec=2:DefinitionSpec? status=3:DefinitionStatus?",
    "DefinitionSpec": (
        "group=1:s names=3:DefinitionNames? scope=4:s versions=7:DefinitionVersion* conversion=9:Conversion? "
        "preserveUnknownFields=10:b"
    ),
    "DefinitionNames": "plural=1:s singular=2:s shortNames=3:s* kind=4:s listKind=5:s categories=6:s*",
    "DefinitionVersion": (
        "name=1:s served=2:b storage=3:b schema=4:DefinitionSchema? subresources=5:DefinitionSubresources? "
        "additionalPrinterColumns=6:DefinitionColumn* deprecated=7:b deprecationWarning=8:s? "
        "selectableFields=9:SelectableField*"
    ),
    "DefinitionSchema": "openAPIV3Schema=1:J",
    "DefinitionSubresources": "status=1:Empty? scale=2:ScalePaths?",
    "Empty": "",
    "ScalePaths": "specReplicasPath=1:s statusReplicasPath=2:s labelSelectorPath=3:s?",
    "DefinitionColumn": "name=1:s type=2:s format=3:s description=4:s priority=5:i jsonPath=6:s",
    "SelectableField": "jsonPath=1:s",
    "Conversion": "strategy=1:s webhook=2:J",
    "DefinitionStatus": "conditions=1:DefinitionCondition* acceptedNames=2:DefinitionNames? storedVersions=3:s*",
    "DefinitionCondition": "type=1:s status=2:s lastTransitionTime=3:T reason=4:s message=5:s",
}

FIELDS: dict[str, str] = _META | _CORE | _PODS | _VOLUMES | _WORKLOADS | _REVIEWS | _DEFINITIONS
