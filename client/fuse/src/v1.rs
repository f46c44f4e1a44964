//! The mount protocol's types, generated from `client/fuse/proto/mount/v1/mount.proto`.

tonic::include_proto!("weir.mount.v1");
