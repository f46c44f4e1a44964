//! Structure-aware fuzzers for everything that Weir decodes: what stands on a device, and what arrives in messages.
//!
//! An input is a string of bytes. A [`targets::Target`] takes choices from it ([`source::Source`]) and makes of them
//! something that is nearly right: a log whose checksums fit, an index whose nodes are where their parents say, a
//! request with a plausible header. So the checks at the door don't keep the fuzzer from what is behind them. What must
//! hold then is asserted: no panic, no hang, no memory beyond bounds, and what the inspector calls sound opens.
//!
//! The driver mutates inputs. In a build with the compiler's coverage counters (`make fuzz`) it keeps those that reach
//! something new and goes on from them; in a plain build, as in the tests, inputs are drawn blindly.

pub mod coverage;
pub mod driver;
pub mod image;
pub mod mutate;
pub mod source;
pub mod targets;
