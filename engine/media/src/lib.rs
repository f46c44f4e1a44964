//! Block devices: io_uring on files and devices, memory, and a simulated disk.
