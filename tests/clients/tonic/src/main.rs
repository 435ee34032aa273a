//! A client of the etcd v3 API on tonic itself: every kind of call, statuses, metadata, deadlines, cancellation.
//!
//! `tonic-client URL [CA CERTIFICATE KEY]` prints a line for each thing that held, and ends with 1 at the first that did not.

use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::ProstCodec;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Response, Status, Streaming};

type Failure = Box<dyn std::error::Error>;

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
    #[prost(bool, tag = "4")]
    prev_kv: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    prev_kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "4")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCancel {
    #[prost(int64, tag = "1")]
    watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
    #[prost(message, optional, tag = "2")]
    cancel: Option<WatchCancel>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, optional, tag = "2")]
    kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchResponse {
    #[prost(int64, tag = "2")]
    watch_id: i64,
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(bool, tag = "4")]
    canceled: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct SnapshotRequest {}

#[derive(Clone, PartialEq, Message)]
struct SnapshotResponse {
    #[prost(uint64, tag = "2")]
    remaining_bytes: u64,
    #[prost(bytes = "vec", tag = "3")]
    blob: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct CampaignRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct CampaignResponse {}

#[derive(Clone)]
struct Client {
    grpc: Grpc<Channel>,
}

impl Client {
    async fn connect(arguments: &[String]) -> Result<Client, Failure> {
        let mut endpoint = Endpoint::from_shared(arguments[0].clone())?.connect_timeout(Duration::from_secs(5));
        if let [_, ca, certificate, key] = arguments {
            let read = |path: &String| std::fs::read(path);
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(read(ca)?))
                .identity(Identity::from_pem(read(certificate)?, read(key)?));
            endpoint = endpoint.tls_config(tls)?;
        }
        let grpc = Grpc::new(endpoint.connect().await?).max_decoding_message_size(64 << 20);
        Ok(Client { grpc })
    }

    async fn unary<Q, A>(&mut self, path: &'static str, request: Request<Q>) -> Result<Response<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.ready().await?;
        self.grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await
    }

    async fn stream<Q, A>(&mut self, path: &'static str, requests: mpsc::Receiver<Q>) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.ready().await?;
        let request = Request::new(ReceiverStream::new(requests));
        let answer = self.grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn put(&mut self, key: &str, value: Vec<u8>) -> Result<PutResponse, Status> {
        let request = PutRequest { key: key.into(), value, prev_kv: true, ..Default::default() };
        Ok(self.unary("/etcdserverpb.KV/Put", Request::new(request)).await?.into_inner())
    }

    async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(self.unary("/etcdserverpb.KV/Range", Request::new(request)).await?.into_inner())
    }
}

fn expect(what: &str, holds: bool) -> Result<(), Failure> {
    if !holds {
        return Err(format!("does not hold: {what}").into());
    }
    println!("{what}");
    Ok(())
}

fn refused<A>(what: &str, answer: Result<A, Status>, code: Code, text: &str) -> Result<(), Failure> {
    match answer {
        Err(status) if status.code() == code && status.message() == text => expect(what, true),
        Err(status) => Err(format!("{what}: {status:?}").into()),
        Ok(_) => Err(format!("{what}: was not refused").into()),
    }
}

async fn unary_calls(client: &mut Client) -> Result<(), Failure> {
    let first = client.put("tonic/a", b"1".to_vec()).await?;
    let second = client.put("tonic/a", b"2".to_vec()).await?;
    let revision = |answer: &PutResponse| answer.header.as_ref().map_or(0, |header| header.revision);
    expect("put: revisions count up", revision(&second) == revision(&first) + 1)?;
    expect("put: the previous value", second.prev_kv.is_some_and(|kv| kv.value == b"1"))?;
    let found = client.range(RangeRequest { key: b"tonic/a".to_vec(), ..Default::default() }).await?;
    expect("range: the newest value", found.kvs.len() == 1 && found.kvs[0].value == b"2")?;
    client.put("tonic/big", vec![7; 1 << 20]).await?;
    let found = client.range(RangeRequest { key: b"tonic/big".to_vec(), ..Default::default() }).await?;
    expect("a message of a megabyte both ways", found.kvs[0].value == vec![7; 1 << 20])
}

async fn statuses(client: &mut Client) -> Result<(), Failure> {
    refused(
        "a refusal before the log",
        client.put("", b"x".to_vec()).await,
        Code::InvalidArgument,
        "etcdserver: key is not provided",
    )?;
    let leased = PutRequest { key: b"tonic/a".to_vec(), lease: 12345, ..Default::default() };
    let answer: Result<Response<PutResponse>, Status> =
        client.unary("/etcdserverpb.KV/Put", Request::new(leased)).await;
    refused("a refusal of the state", answer, Code::NotFound, "etcdserver: requested lease not found")?;
    let future = RangeRequest { key: b"tonic/a".to_vec(), revision: 1 << 40, ..Default::default() };
    refused(
        "a revision of the future",
        client.range(future).await,
        Code::OutOfRange,
        "etcdserver: mvcc: required revision is a future revision",
    )?;
    let answer: Result<Response<PutResponse>, Status> =
        client.unary("/etcdserverpb.KV/Nothing", Request::new(PutRequest::default())).await;
    expect("an unknown method", answer.is_err_and(|status| status.code() == Code::Unimplemented))
}

async fn deadlines(client: &mut Client) -> Result<(), Failure> {
    let grant = LeaseGrantRequest { ttl: 60 };
    let lease: LeaseGrantResponse =
        client.unary("/etcdserverpb.Lease/LeaseGrant", Request::new(grant)).await?.into_inner();
    let campaign = |id| CampaignRequest { name: b"tonic-election".to_vec(), lease: id };
    let _: Response<CampaignResponse> =
        client.unary("/v3electionpb.Election/Campaign", Request::new(campaign(lease.id))).await?;
    let other: LeaseGrantResponse =
        client.unary("/etcdserverpb.Lease/LeaseGrant", Request::new(LeaseGrantRequest { ttl: 60 })).await?.into_inner();
    let mut waiting = Request::new(campaign(other.id));
    waiting.set_timeout(Duration::from_millis(300));
    let answer: Result<Response<CampaignResponse>, Status> =
        client.unary("/v3electionpb.Election/Campaign", waiting).await;
    expect(
        "a deadline ends a call that waits",
        answer.is_err_and(|status| matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled)),
    )
}

async fn leases(client: &mut Client) -> Result<(), Failure> {
    let grant = Request::new(LeaseGrantRequest { ttl: 60 });
    let lease: LeaseGrantResponse = client.unary("/etcdserverpb.Lease/LeaseGrant", grant).await?.into_inner();
    let (renewals, requests) = mpsc::channel(4);
    renewals.send(LeaseKeepAliveRequest { id: lease.id }).await?;
    let mut answers: Streaming<LeaseKeepAliveResponse> =
        client.stream("/etcdserverpb.Lease/LeaseKeepAlive", requests).await?;
    for _ in 0..3 {
        let answer = answers.message().await?.ok_or("the stream ended")?;
        expect("a lease is renewed", (answer.id, answer.ttl) == (lease.id, lease.ttl))?;
        renewals.send(LeaseKeepAliveRequest { id: lease.id }).await?;
    }
    drop(renewals);
    while answers.message().await?.is_some() {}
    expect("a half-closed stream ends well", true)
}

async fn watches(client: &mut Client) -> Result<(), Failure> {
    let (asks, requests) = mpsc::channel(4);
    let create = WatchCreate { key: b"tonic/w".to_vec(), range_end: b"tonic/x".to_vec() };
    asks.send(WatchRequest { create: Some(create), cancel: None }).await?;
    let mut answers: Streaming<WatchResponse> = client.stream("/etcdserverpb.Watch/Watch", requests).await?;
    let created = answers.message().await?.ok_or("the stream ended")?;
    expect("a watch is created", created.created)?;
    for number in 0..100u8 {
        client.put(&format!("tonic/w{number}"), vec![number]).await?;
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let answer = answers.message().await?.ok_or("the stream ended")?;
        seen.extend(answer.events.into_iter().filter_map(|event| event.kv).map(|kv| kv.value[0]));
    }
    expect("every event once and in order", seen == (0..100).collect::<Vec<u8>>())?;
    let cancel = WatchCancel { watch_id: created.watch_id };
    asks.send(WatchRequest { create: None, cancel: Some(cancel) }).await?;
    expect("a watch is cancelled", answers.message().await?.is_some_and(|answer| answer.canceled))?;
    drop(answers); // the stream is reset while the server would go on
    client.put("tonic/after", b"x".to_vec()).await?;
    expect("the connection serves on after a stream was dropped", true)
}

async fn snapshots(client: &mut Client) -> Result<(), Failure> {
    client.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Snapshot");
    let answer: Result<Response<Streaming<SnapshotResponse>>, Status> =
        client.grpc.server_streaming(Request::new(SnapshotRequest {}), path, ProstCodec::default()).await;
    let mut parts = answer?.into_inner();
    let (mut size, mut remaining) = (0, 1);
    while let Some(part) = parts.message().await? {
        size += part.blob.len();
        remaining = part.remaining_bytes;
    }
    expect("a snapshot arrives whole", size > 1 << 20 && remaining == 0)
}

async fn crowd(client: &Client) -> Result<(), Failure> {
    let calls: Vec<_> = (0..500)
        .map(|number| {
            let mut own = client.clone();
            async move { own.put(&format!("tonic/crowd{number}"), vec![1; 300]).await }
        })
        .map(tokio::spawn)
        .collect();
    for call in calls {
        call.await??;
    }
    let mut own = client.clone();
    let all = RangeRequest { key: b"tonic/crowd".to_vec(), range_end: b"tonic/crowe".to_vec(), revision: 0 };
    expect("500 calls at once on one connection", own.range(all).await?.count == 500)
}

async fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut client = Client::connect(arguments).await?;
    unary_calls(&mut client).await?;
    statuses(&mut client).await?;
    deadlines(&mut client).await?;
    leases(&mut client).await?;
    watches(&mut client).await?;
    snapshots(&mut client).await?;
    crowd(&client).await
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !matches!(arguments.len(), 1 | 4) {
        return Err("usage: tonic-client URL [CA CERTIFICATE KEY]".into());
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(&arguments))
}
