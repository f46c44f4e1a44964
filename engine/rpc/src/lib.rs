//! Requests, replies, bulk transfers, deadlines and retries.
