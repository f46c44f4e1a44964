//! Single-threaded async executor with a real and a simulated implementation.
