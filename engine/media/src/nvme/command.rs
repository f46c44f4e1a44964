//! NVMe commands as the kernel passes them through: entries of a ring for reads, writes and flushes, and calls for what
//! is asked of the drive rarely.
//!
//! Numbers and layouts: NVM Express Base Specification 2.0 and NVM Command Set Specification 1.0; `linux/nvme_ioctl.h`.

use crate::uring::{Action, Descriptor, PartMax, Request, Wire};
use crate::wear::LOG_BYTES;
use io_uring::{cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IO('N', 0x40)`: the namespace's number.
const IOCTL_ID: libc::c_ulong = 0x4e40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`: an administrative command.
const IOCTL_ADMIN: libc::c_ulong = 0xc048_4e41;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`: a command whose data is one piece of memory.
const URING_IO: u32 = 0xc048_4e80;
/// `_IOWR('N', 0x81, struct nvme_uring_cmd)`: a command whose data is many pieces.
const URING_IO_VEC: u32 = 0xc048_4e81;

/// Bytes of `struct nvme_uring_cmd`; the ring's entry has room for eight more.
const COMMAND_BYTES: usize = 72;

const OPCODE_FLUSH: u8 = 0x00;
const OPCODE_WRITE: u8 = 0x01;
const OPCODE_READ: u8 = 0x02;
const OPCODE_GET_LOG_PAGE: u8 = 0x02;
const OPCODE_IDENTIFY: u8 = 0x06;

/// Force unit access, bit 30 of a write's dword 12: the write completes when it is on stable media.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

/// Every namespace, as logs of the whole drive are asked for.
const ALL_NAMESPACES: u32 = u32::MAX;

/// The SMART / health information log.
const LOG_SMART: u32 = 0x02;

/// Bytes of an identify structure.
const IDENTIFY_BYTES: usize = 4096;

/// What Identify is asked for: a namespace, or the controller.
const IDENTIFY_NAMESPACE: u32 = 0;
const IDENTIFY_CONTROLLER: u32 = 1;

/// Longest administrative command, in milliseconds: as long as Linux waits by itself.
const ADMIN_TIMEOUT_MS: u32 = 60_000;

/// Most bytes of one command: what every kernel takes of memory whose pages lie anywhere (128 segments of a page each,
/// one less where the memory begins within a page).
const BYTES_MAX: usize = 256 << 10;

/// Most pieces of memory of one command, for the same reason: each ends in a segment of its own.
const VECTORS_MAX: usize = 32;

/// Smallest page of a controller's memory in bytes, the unit of the most it transfers at once.
const PAGE_MIN: usize = 4096;

/// `struct nvme_passthru_cmd` and the begin of `struct nvme_uring_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == COMMAND_BYTES);

/// What a namespace and its controller say of themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number of the namespace.
    pub namespace: u32,
    /// Bytes of a logical block, as a power of two.
    pub block_shift: u8,
    /// Logical blocks.
    pub blocks: u64,
    /// Most bytes of one command.
    pub bytes_max: usize,
    /// Whether there is a volatile cache: without one a flush has nothing to do.
    pub has_cache: bool,
    /// Model and serial number.
    pub model: String,
    /// Serial number.
    pub serial: String,
}

/// Runs an administrative command that fills `data`.
fn admin(file: &File, mut command: AdminCommand, data: &mut [u8]) -> io::Result<()> {
    command.address = data.as_mut_ptr().addr() as u64;
    command.data_len = u32::try_from(data.len()).map_err(io::Error::other)?;
    command.timeout_ms = ADMIN_TIMEOUT_MS;
    data.as_mut_ptr().expose_provenance();
    // SAFETY: the command has the layout that the request number stands for, and its address and length are those of
    // `data`, which is borrowed exclusively while the call waits for the drive to fill it.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ADMIN, &raw mut command) };
    match status {
        0 => Ok(()),
        1.. => Err(refusal(status)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A status that a drive has answered, in words.
pub(super) fn refusal(status: i32) -> io::Error {
    let (kind, code) = ((status >> 8) & 7, status & 0xff);
    let what = match (kind, code) {
        (0, 0x02) => "a field of the command is invalid",
        (0, 0x04) => "the data could not be transferred",
        (0, 0x06) => "the drive failed internally",
        (0, 0x20) => "the namespace is write-protected",
        (0, 0x80) => "the address is beyond the namespace",
        (0, 0x81) => "its capacity is used up",
        (0, 0x82) => "the namespace is not ready",
        (2, 0x80) => "the media could not be written",
        (2, 0x81) => "the data could not be read from the media",
        (2, 0x82..=0x85) => "the data does not match its protection",
        (2, 0x86) => "access is denied",
        (2, 0x87) => "the block was never written",
        _ => "see the NVMe specification",
    };
    io::Error::other(format!("the drive answered status {kind:#x}/{code:#04x}: {what}"))
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Understands what a drive has answered to Identify, for the namespace of a number: the pages of namespace and controller.
///
/// # Errors
/// Why it can't be used, in words.
pub fn identity(number: u32, space: &[u8], controller: &[u8]) -> Result<Identity, String> {
    let blocks = u64::from_le_bytes(le(space, 0));
    let formatted = le::<1>(space, 26)[0];
    let format = usize::from((formatted & 0x0f) | ((formatted >> 1) & 0x30));
    let metadata = u16::from_le_bytes(le(space, 128 + 4 * format));
    let block_shift = le::<1>(space, 130 + 4 * format)[0];
    if blocks == 0 {
        return Err("the namespace is inactive".to_owned());
    }
    if metadata != 0 {
        return Err(format!(
            "its blocks carry {metadata} bytes of metadata: format the namespace without metadata"
        ));
    }
    if !(9..=12).contains(&block_shift) {
        return Err(format!(
            "its blocks are 2^{block_shift} bytes long: format the namespace with blocks of 512 or 4096 bytes"
        ));
    }
    if blocks.leading_zeros() < block_shift.into() {
        return Err(format!("it says that it has {blocks} blocks, more bytes than can be counted"));
    }
    let bytes_max = match le::<1>(controller, 77)[0] {
        0 => BYTES_MAX,
        power => {
            let bytes = PAGE_MIN.checked_shl(power.into()).filter(|bytes| *bytes >= PAGE_MIN);
            bytes.unwrap_or(BYTES_MAX).min(BYTES_MAX)
        }
    };
    Ok(Identity {
        namespace: number,
        block_shift,
        blocks,
        bytes_max,
        has_cache: le::<1>(controller, 525)[0] & 1 != 0,
        model: text(&le::<40>(controller, 24)),
        serial: text(&le::<20>(controller, 4)),
    })
}

/// Asks a namespace's character device what it is.
///
/// # Errors
/// Why it can't be used, in words.
pub(super) fn identify(file: &File) -> Result<Identity, String> {
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID) };
    let number = u32::try_from(number)
        .map_err(|_| format!("it is no NVMe namespace: {}", io::Error::last_os_error()))?;
    let ask = |what| {
        let mut data = vec![0; IDENTIFY_BYTES];
        let namespace = if what == IDENTIFY_NAMESPACE { number } else { 0 };
        let command =
            AdminCommand { opcode: OPCODE_IDENTIFY, namespace, cdw10: what, ..AdminCommand::default() };
        admin(file, command, &mut data).map(|()| data).map_err(|error| {
            format!("the drive can't be identified: {error}; this needs CAP_SYS_ADMIN before Linux 6.2")
        })
    };
    identity(number, &ask(IDENTIFY_NAMESPACE)?, &ask(IDENTIFY_CONTROLLER)?)
}

/// Reads the SMART / health information log.
pub(super) fn smart_log(file: &File) -> io::Result<Vec<u8>> {
    let mut page = vec![0; LOG_BYTES];
    // The length is in dwords, less one, in the upper half.
    let dwords = u32::try_from(LOG_BYTES / 4 - 1).map_err(io::Error::other)?;
    let command = AdminCommand {
        opcode: OPCODE_GET_LOG_PAGE,
        namespace: ALL_NAMESPACES,
        cdw10: LOG_SMART | dwords << 16,
        ..AdminCommand::default()
    };
    admin(file, command, &mut page).map(|()| page)
}

/// Transfers as NVMe commands.
pub(super) struct NvmeWire {
    pub(super) namespace: u32,
    pub(super) block_shift: u8,
    pub(super) bytes_max: usize,
}

impl NvmeWire {
    /// `struct nvme_uring_cmd` and the number that tells how its data is named.
    fn command(&self, request: &Request<'_>) -> (u32, [u8; 80]) {
        let (code, flags) = match request.action {
            Action::Read => (OPCODE_READ, 0),
            Action::Write { stable: true } => (OPCODE_WRITE, FORCE_UNIT_ACCESS),
            Action::Write { stable: false } => (OPCODE_WRITE, 0),
            Action::Flush => (OPCODE_FLUSH, 0),
        };
        let mut bytes = [0; 80];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &[code]);
        put(4, &self.namespace.to_ne_bytes());
        let mut kind = URING_IO;
        if request.action != Action::Flush {
            let (address, len) = match request.vectors {
                [one] => (one.iov_base.expose_provenance(), request.len),
                many => {
                    kind = URING_IO_VEC;
                    for one in many {
                        one.iov_base.expose_provenance();
                    }
                    (many.as_ptr().expose_provenance(), many.len())
                }
            };
            let first = request.offset >> self.block_shift;
            let blocks = (request.len >> self.block_shift).saturating_sub(1);
            put(24, &(address as u64).to_ne_bytes());
            put(36, &u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
            // The address of the first block in dwords 10 and 11, their number less one in the lower half of 12.
            put(40, &first.to_ne_bytes());
            put(48, &(u32::try_from(blocks).unwrap_or(u32::MAX) & 0xffff | flags).to_ne_bytes());
        }
        (kind, bytes)
    }
}

impl Wire for NvmeWire {
    type Submission = squeue::Entry128;
    type Completion = cqueue::Entry32;

    fn submission(&self, request: &Request<'_>) -> squeue::Entry128 {
        let (kind, command) = self.command(request);
        let entry = match request.descriptor {
            Descriptor::Plain(number) => opcode::UringCmd80::new(types::Fd(number), kind),
            Descriptor::Registered(index) => opcode::UringCmd80::new(types::Fixed(index), kind),
        };
        entry.cmd(command).buf_index(request.region).build().user_data(request.slot)
    }

    fn completion(completion: &cqueue::Entry32) -> (u64, i32) {
        (completion.user_data(), completion.result())
    }

    fn part_max(&self) -> PartMax {
        PartMax { bytes: self.bytes_max, vectors: VECTORS_MAX }
    }

    /// A drive transfers all or answers a status.
    fn outcome(result: i32, _: usize) -> io::Result<()> {
        if result == 0 { Ok(()) } else { Err(refusal(result)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(blocks: u64, shift: u8, metadata: u16, mdts: u8) -> (Vec<u8>, Vec<u8>) {
        let (mut space, mut controller) = (vec![0; IDENTIFY_BYTES], vec![b' '; IDENTIFY_BYTES]);
        space[..8].copy_from_slice(&blocks.to_le_bytes());
        space[26] = 1;
        space[132..134].copy_from_slice(&metadata.to_le_bytes());
        space[134] = shift;
        controller[4..7].copy_from_slice(b"S01");
        controller[24..28].copy_from_slice(b"Fast");
        (controller[77], controller[525]) = (mdts, 1);
        (space, controller)
    }

    #[test]
    fn identify_pages_are_understood_and_what_cannot_be_used_is_refused_in_words() {
        let (space, controller) = pages(2048, 9, 0, 5);
        let found = identity(3, &space, &controller).expect("a usable namespace");
        let wanted = Identity {
            namespace: 3,
            block_shift: 9,
            blocks: 2048,
            bytes_max: 128 << 10,
            has_cache: true,
            model: "Fast".to_owned(),
            serial: "S01".to_owned(),
        };
        assert_eq!(found, wanted);
        for mdts in [0, 12, 40, 52, 63, 64, 255] {
            let (space, controller) = pages(2048, 12, 0, mdts);
            assert_eq!(identity(1, &space, &controller).expect("usable").bytes_max, BYTES_MAX, "{mdts}");
        }
        for (blocks, shift, metadata, words) in [
            (0, 9, 0, "inactive"),
            (8, 9, 8, "without metadata"),
            (8, 13, 0, "512 or 4096"),
            (8, 0, 0, "2^0"),
            (1 << 52, 12, 0, "more bytes"),
        ] {
            let (space, controller) = pages(blocks, shift, metadata, 0);
            let refused = identity(1, &space, &controller).expect_err("unusable");
            assert!(refused.contains(words), "{refused}");
        }
        assert!(identity(1, &[], &[]).is_err(), "an answer too short");
    }

    #[test]
    fn commands_have_the_layout_of_the_specification() {
        let wire = NvmeWire { namespace: 2, block_shift: 9, bytes_max: BYTES_MAX };
        let mut memory = [0u8; 16];
        let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 8192 };
        let request = |action, vectors| Request {
            action,
            offset: 0x2_0000_1000,
            len: 8192,
            vectors,
            region: None,
            descriptor: Descriptor::Plain(0),
            slot: 1,
        };
        let one = [vector];
        let (kind, write) = wire.command(&request(Action::Write { stable: true }, &one));
        assert_eq!((kind, write[0], write[4]), (URING_IO, 1, 2));
        assert_eq!(u64::from_ne_bytes(le(&write, 24)), memory.as_ptr().addr() as u64);
        assert_eq!(u32::from_ne_bytes(le(&write, 36)), 8192);
        assert_eq!(u64::from_ne_bytes(le(&write, 40)), 0x0100_0008);
        assert_eq!(u32::from_ne_bytes(le(&write, 48)), 15 | 1 << 30);
        let many = [vector, vector];
        let (kind, read) = wire.command(&request(Action::Read, &many));
        assert_eq!((kind, read[0], u32::from_ne_bytes(le(&read, 36))), (URING_IO_VEC, 2, 2));
        let (kind, flush) = wire.command(&request(Action::Flush, &[]));
        assert_eq!((kind, flush[0], &flush[8..]), (URING_IO, 0, &[0; 72][..]));
    }

    #[test]
    fn what_a_drive_refuses_is_told_in_words() {
        assert!(refusal(0x281).to_string().contains("0x2/0x81: the data could not be read"));
        assert!(refusal(0x4002).to_string().contains("field of the command"), "the do-not-retry bit");
    }
}
