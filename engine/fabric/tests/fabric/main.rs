//! What endpoints of all fabrics promise.

mod callers;
mod channels;
mod deaf_peer;
#[path = "../inbox/mod.rs"]
mod inbox;
mod strangers;
