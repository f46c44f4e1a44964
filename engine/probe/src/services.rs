//! The server's side of measurements.

use std::rc::Rc;

use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::probe::ProbeListener;
use weir_proto::{codec, opcode};
use weir_rpc::{Request, Rpc};

/// Answers requests with nothing, and reads or writes at most one request's payload of the client's memory.
pub fn serve(rpc: &Rpc) {
    rpc.serve(opcode::PING, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    let bounded = |len: u64| usize::try_from(len.min(PAYLOAD_MAX)).unwrap_or(0);
    rpc.serve(
        opcode::PROBE_PULL,
        Rc::new(move |request: Request| async move {
            let len = bounded(request.bulk_len());
            let mut payload = request.payload(len).await?;
            request.pull(0, &mut payload, len).await?;
            Ok(Vec::new())
        }),
    );
    rpc.serve(
        opcode::PROBE_PUSH,
        Rc::new(move |request: Request| async move {
            let len = bounded(request.bulk_room());
            let mut payload = request.payload(len).await?;
            // The memory may have held another client's data.
            payload.fill(0);
            request.push(0, &payload, len).await?;
            Ok(Vec::new())
        }),
    );
}

/// Answers where else this server is measured.
pub fn announce(rpc: &Rpc, listeners: &[ProbeListener]) {
    let listed = codec::encode(listeners);
    rpc.serve(
        opcode::PROBE_LIST,
        Rc::new(move |_: Request| {
            let listed = listed.clone();
            async move { Ok(listed) }
        }),
    );
}
