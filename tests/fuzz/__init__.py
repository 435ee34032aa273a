"""Raw requests over every RPC of a member: random bytes, damaged messages, and valid ones of odd values."""
