//! What the successor of a mount's process needs: inodes that the kernel refers to, open handles, gathered writes and changes of
//! attributes, requests under way, and the lease. It stands in a memory file, which the mount broker keeps, so that it outlives the process however that ends.
//!
//! The file has a head and tables of slots, each at a fixed place. The file is sparse: what was never written takes no memory. A
//! slot lies within a page and is written by one call, so that a process that is killed leaves the old slot or the new one.
//! Everything is written before the kernel gets the answer that it stands for.

mod change;
mod extents;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use weir_client::ObjectId;
use weir_dfs::{ClientId, Kind, Names, Node, Record};

pub use change::KeptChange;
use extents::Extents;

/// Begins a file that a mount can be taken with. The last byte is the version of what follows.
const MAGIC: [u8; 8] = *b"weirknt\x02";

/// Fields of the head, by offset.
const HEAD_MAGIC: u64 = 0;
const HEAD_GENERATION: u64 = 8;
const HEAD_LEASE: u64 = 16;
const HEAD_INODES: u64 = 48;
const HEAD_HANDLES: u64 = 56;
const HEAD_WRITES: u64 = 64;
const HEAD_CHANGES: u64 = 72;
const HEAD_REQUESTS: u64 = 80;

/// Where the inodes are, and bytes of each: a name of 255 bytes, and the record without the target of a symbolic link.
const INODES: Place = Place { base: 1 << 20, size: 512, count: HEAD_INODES };

/// Where the handles are, behind as many inodes as a mount can have.
const HANDLES: Place = Place { base: 1 << 44, size: 64, count: HEAD_HANDLES };

/// Where gathered writes are described, and where their bytes are.
const WRITES: Place = Place { base: 1 << 45, size: 64, count: HEAD_WRITES };
const BYTES: u64 = 1 << 46;

/// Where changes of attributes are.
const CHANGES: Place = Place { base: 1 << 47, size: 128, count: HEAD_CHANGES };

/// Where requests under way are.
const REQUESTS: Place = Place { base: 1 << 48, size: 64, count: HEAD_REQUESTS };

/// Room for the bytes of gathered writes: all that a mount may gather (1 GiB), and as much again, since what was written twice, or has
/// arrived in part, takes room until all of it has arrived.
const BYTES_MAX: u64 = 2 << 30;

/// Memory of gathered writes that is kept for the next ones.
const BYTES_SPARE: u64 = 8 << 20;

/// Numbers of handles that each process of a mount may give out: they are never used twice, also not by a successor.
const GENERATION_SHIFT: u32 = 40;

/// A table's place in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    base: u64,
    size: u64,
    /// Offset of the number of slots that were ever used.
    count: u64,
}

impl Place {
    fn offset(self, slot: Slot) -> u64 {
        self.base + slot.0 * self.size
    }
}

/// A place of a table, by its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u64);

/// Slots of one table.
#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    used: u64,
}

/// An inode that the kernel refers to, or that is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptInode {
    /// References that the kernel holds.
    pub lookups: u64,
    /// The inode under the name it had last. A symbolic link is without its target.
    pub node: Node,
    /// What has become of its name.
    pub fate: Fate,
}

/// What has become of an inode's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are those of an inode's state, independent of each other"
)]
pub struct Fate {
    /// This mount has removed it.
    pub removed: bool,
    /// Other clients may have it open, too.
    pub shared: bool,
    /// It has none any more.
    pub nameless: bool,
    /// Others have renamed it.
    pub renamed: bool,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptHandle {
    /// Number of the handle.
    pub number: u64,
    /// Number of its inode.
    pub inode: u64,
    /// Flags of `open`; `None` for a directory.
    pub flags: Option<i32>,
    /// The kernel's number of the request that opened it.
    pub request: u64,
}

/// A request of the kernel that changes names and is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptRequest {
    /// The kernel's number of it.
    pub number: u64,
    /// Which inode gets or loses a name.
    pub object: ObjectId,
    /// Which one is replaced, or exchanged with it.
    pub other: Option<ObjectId>,
}

/// The lease of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptLease {
    /// Whose it is.
    pub client: ClientId,
    /// Whether the mount grants locks.
    pub grants_locks: bool,
}

/// A gathered write that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptWrite {
    slot: Slot,
    place: u64,
    length: u32,
    /// The order in which writes came.
    pub order: u64,
}

/// A gathered write that the engines may not have.
#[derive(PartialEq, Eq, Debug)]
pub struct InheritedWrite {
    /// Where it is kept.
    pub kept: KeptWrite,
    /// Number of the file's inode.
    pub inode: u64,
    /// Place in the file.
    pub offset: u64,
    /// What was written.
    pub data: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct StoredWrite {
    inode: u64,
    offset: u64,
    order: u64,
    place: u64,
    length: u32,
}

/// What a process has left to its successor.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Inodes.
    pub inodes: Vec<(Slot, KeptInode)>,
    /// Handles.
    pub handles: Vec<(Slot, KeptHandle)>,
    /// Gathered writes, the oldest first.
    pub writes: Vec<InheritedWrite>,
    /// Changes of attributes, one of a file.
    pub changes: Vec<(Slot, KeptChange)>,
    /// Requests under way.
    pub requests: Vec<(Slot, KeptRequest)>,
    /// The lease, if there was one.
    pub lease: Option<KeptLease>,
}

#[derive(Serialize, Deserialize)]
struct StoredInode {
    lookups: u64,
    fate: Fate,
    parent: ObjectId,
    #[serde(with = "serde_bytes")]
    name: Vec<u8>,
    record: Record,
    /// How many names, where an object of the inode's own counts them; the record doesn't carry that.
    counted: Option<u32>,
}

/// The memory file of a mount.
#[derive(Debug)]
pub struct Kept {
    file: File,
    generation: u64,
    inodes: Mutex<Slots>,
    handles: Mutex<Slots>,
    writes: Mutex<Slots>,
    changes: Mutex<Slots>,
    requests: Mutex<Slots>,
    /// Room for the bytes of gathered writes.
    room: Mutex<Extents>,
    /// The order of the last gathered write.
    last_write: AtomicU64,
    /// Something could not be written.
    has_failed: AtomicBool,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the mount's memory file: {what}"))
}

impl Kept {
    /// Begins a file for a new mount.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn begin(file: File) -> io::Result<Self> {
        let kept = Self::over(file, 0);
        kept.file.write_all_at(&MAGIC, HEAD_MAGIC)?;
        Ok(kept)
    }

    /// Takes what a process has left.
    ///
    /// # Errors
    /// When it can't be read, or is of another version.
    pub fn resume(file: File) -> io::Result<(Self, Inherited)> {
        let kept = Self::over(file, 0);
        let mut magic = [0; 8];
        kept.file.read_exact_at(&mut magic, HEAD_MAGIC)?;
        if magic != MAGIC {
            return Err(malformed("it is of another version, or was given up"));
        }
        let generation = kept.read_u64(HEAD_GENERATION)? + 1;
        kept.file.write_all_at(&generation.to_le_bytes(), HEAD_GENERATION)?;
        let mut inherited = Inherited { lease: kept.read_lease()?, ..Inherited::default() };
        kept.read_slots(INODES, &kept.inodes, &mut |slot, bytes| {
            let stored: StoredInode = weir_proto::codec::decode(bytes).map_err(|_| malformed("an inode"))?;
            let StoredInode { lookups, fate, parent, name, record, counted } = stored;
            let record = Record { names: counted.map_or(Names::One, Names::Counted), ..record };
            inherited.inodes.push((slot, KeptInode { lookups, node: Node { parent, name, record }, fate }));
            Ok(())
        })?;
        kept.read_slots(HANDLES, &kept.handles, &mut |slot, bytes| {
            let handle = weir_proto::codec::decode(bytes).map_err(|_| malformed("a handle"))?;
            inherited.handles.push((slot, handle));
            Ok(())
        })?;
        let mut writes = Vec::new();
        kept.read_slots(WRITES, &kept.writes, &mut |slot, bytes| {
            let stored = weir_proto::codec::decode(bytes).map_err(|_| malformed("a write"))?;
            writes.push(kept.read_write(slot, &stored)?);
            Ok(())
        })?;
        kept.read_slots(CHANGES, &kept.changes, &mut |slot, bytes| {
            let change = weir_proto::codec::decode(bytes).map_err(|_| malformed("a change of attributes"))?;
            inherited.changes.push((slot, change));
            Ok(())
        })?;
        kept.read_slots(REQUESTS, &kept.requests, &mut |slot, bytes| {
            let request = weir_proto::codec::decode(bytes).map_err(|_| malformed("a request"))?;
            inherited.requests.push((slot, request));
            Ok(())
        })?;
        writes.sort_by_key(|write| write.kept.order);
        kept.last_write.store(writes.last().map_or(0, |write| write.kept.order), Ordering::Relaxed);
        inherited.writes = writes;
        Ok((Self { generation, ..kept }, inherited))
    }

    fn read_write(&self, slot: Slot, stored: &StoredWrite) -> io::Result<InheritedWrite> {
        let StoredWrite { inode, offset, order, place, length } = *stored;
        if !lock(&self.room).take_at(place, u64::from(length)) {
            return Err(malformed("two writes in one place"));
        }
        let mut data = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut data, BYTES + place)?;
        Ok(InheritedWrite { kept: KeptWrite { slot, place, length, order }, inode, offset, data })
    }

    fn over(file: File, generation: u64) -> Self {
        Self {
            file,
            generation,
            inodes: Mutex::default(),
            handles: Mutex::default(),
            writes: Mutex::default(),
            changes: Mutex::default(),
            requests: Mutex::default(),
            room: Mutex::new(Extents::new(BYTES_MAX)),
            last_write: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// The first number that this process may give to a handle.
    #[must_use]
    pub fn first_handle(&self) -> u64 {
        (self.generation << GENERATION_SHIFT) | 1
    }

    fn read_u64(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        // What was never written is zero, or lies behind the end.
        match self.file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read.map(|()| u64::from_le_bytes(bytes)),
        }
    }

    /// Reads the slots of a table that are used. Each begins with the length of what it holds.
    fn read_slots(
        &self,
        place: Place,
        slots: &Mutex<Slots>,
        each: &mut dyn FnMut(Slot, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let used = self.read_u64(place.count)?;
        let mut slots = lock(slots);
        slots.used = used;
        let mut bytes = vec![0; usize::try_from(place.size).map_err(io::Error::other)?];
        for slot in (0..used).map(Slot) {
            bytes.fill(0);
            match self.file.read_exact_at(&mut bytes, place.offset(slot)) {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                _ => {}
            }
            let (length, content) = bytes.split_at(2);
            match usize::from(u16::from_le_bytes([length[0], length[1]])) {
                0 => slots.free.push(slot),
                length => {
                    each(slot, content.get(..length).ok_or_else(|| malformed("a slot is too long"))?)?;
                }
            }
        }
        Ok(())
    }

    fn read_lease(&self) -> io::Result<Option<KeptLease>> {
        let mut bytes = [0; 18];
        match self.file.read_exact_at(&mut bytes, HEAD_LEASE) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [is_there, grants_locks, client @ ..] = bytes;
        let client = ClientId::from_bytes(client);
        Ok((is_there == 1).then_some(KeptLease { client, grants_locks: grants_locks == 1 }))
    }

    /// Keeps the lease.
    pub fn put_lease(&self, lease: KeptLease) {
        let mut bytes = [0; 18];
        bytes[0] = 1;
        bytes[1] = u8::from(lease.grants_locks);
        bytes[2..].copy_from_slice(&lease.client.to_bytes());
        self.write(&bytes, HEAD_LEASE);
    }

    /// Keeps an inode, in its slot or a new one.
    pub fn put_inode(&self, slot: Option<Slot>, inode: &KeptInode) -> Slot {
        let Node { parent, name, record } = inode.node.clone();
        let target = if record.kind == Kind::Symlink { Vec::new() } else { record.target };
        let counted = match record.names {
            Names::One => None,
            Names::Counted(names) => Some(names),
        };
        let record = Record { target, ..record };
        let stored = StoredInode { lookups: inode.lookups, fate: inode.fate, parent, name, record, counted };
        self.put(INODES, &self.inodes, slot, &weir_proto::codec::encode(&stored))
    }

    /// Forgets an inode.
    pub fn drop_inode(&self, slot: Slot) {
        self.drop_slot(INODES, &self.inodes, slot);
    }

    /// Keeps a handle, in its slot or a new one.
    pub fn put_handle(&self, slot: Option<Slot>, handle: &KeptHandle) -> Slot {
        self.put(HANDLES, &self.handles, slot, &weir_proto::codec::encode(handle))
    }

    /// Forgets a handle.
    pub fn drop_handle(&self, slot: Slot) {
        self.drop_slot(HANDLES, &self.handles, slot);
    }

    /// Keeps a gathered write. `None`: there is no room, so that it may not be gathered.
    pub fn put_write(&self, inode: u64, offset: u64, data: &[u8]) -> Option<KeptWrite> {
        let length = u32::try_from(data.len()).ok()?;
        let place = lock(&self.room).take(u64::from(length))?;
        self.write(data, BYTES + place);
        let order = self.last_write.fetch_add(1, Ordering::Relaxed) + 1;
        let stored = StoredWrite { inode, offset, order, place, length };
        let slot = self.put(WRITES, &self.writes, None, &weir_proto::codec::encode(&stored));
        Some(KeptWrite { slot, place, length, order })
    }

    /// Forgets a gathered write.
    pub fn drop_write(&self, write: KeptWrite) {
        self.drop_slot(WRITES, &self.writes, write.slot);
        let mut room = lock(&self.room);
        room.give(write.place, u64::from(write.length));
        if let Some(used) = room.emptied(BYTES_SPARE) {
            // What isn't given back now, is at the next time.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, flags, BYTES, used);
        }
    }

    /// Keeps a change of attributes, in its slot or a new one.
    pub fn put_change(&self, slot: Option<Slot>, change: &KeptChange) -> Slot {
        self.put(CHANGES, &self.changes, slot, &weir_proto::codec::encode(change))
    }

    /// Forgets a change of attributes.
    pub fn drop_change(&self, slot: Slot) {
        self.drop_slot(CHANGES, &self.changes, slot);
    }

    /// Keeps a request under way, in its slot or a new one.
    pub fn put_request(&self, slot: Option<Slot>, request: &KeptRequest) -> Slot {
        self.put(REQUESTS, &self.requests, slot, &weir_proto::codec::encode(request))
    }

    /// Forgets a request.
    pub fn drop_request(&self, slot: Slot) {
        self.drop_slot(REQUESTS, &self.requests, slot);
    }

    fn put(&self, place: Place, slots: &Mutex<Slots>, slot: Option<Slot>, content: &[u8]) -> Slot {
        let slot = slot.unwrap_or_else(|| {
            let mut slots = lock(slots);
            slots.free.pop().unwrap_or_else(|| {
                let slot = Slot(slots.used);
                slots.used += 1;
                self.write(&slots.used.to_le_bytes(), place.count);
                slot
            })
        });
        let length = u16::try_from(content.len()).ok().filter(|length| u64::from(*length) + 2 <= place.size);
        let Some(length) = length else {
            self.give_up(&malformed("a slot is too small for what it has to hold"));
            return slot;
        };
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(content);
        self.write(&bytes, place.offset(slot));
        slot
    }

    fn drop_slot(&self, place: Place, slots: &Mutex<Slots>, slot: Slot) {
        self.write(&[0, 0], place.offset(slot));
        lock(slots).free.push(slot);
    }

    fn write(&self, bytes: &[u8], at: u64) {
        if let Err(error) = self.file.write_all_at(bytes, at) {
            self.give_up(&error);
        }
    }

    /// The file can't be trusted any more: no successor may go by it.
    fn give_up(&self, error: &io::Error) {
        if self.has_failed.swap(true, Ordering::Relaxed) {
            return;
        }
        // The head was written when the mount began, so that this needs no memory.
        let given_up = self.file.write_all_at(&[0; 8], HEAD_MAGIC);
        tracing::error!(%error, ?given_up, "a successor of this process can't take the mount");
    }
}

fn lock<T>(locked: &Mutex<T>) -> MutexGuard<'_, T> {
    locked.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use weir_client::Epoch;
    use weir_dfs::{Change, SetAttributes};

    fn file() -> File {
        // Few file systems have files as large.
        File::from(rustix::fs::memfd_create("kept", MemfdFlags::CLOEXEC).expect("made"))
    }

    fn again(kept: &Kept) -> io::Result<(Kept, Inherited)> {
        Kept::resume(kept.file.try_clone().expect("cloned"))
    }

    fn inode(lo: u64, name: &[u8]) -> KeptInode {
        let record = Record {
            kind: Kind::File,
            mode: 0o7777,
            uid: u32::MAX,
            gid: u32::MAX,
            oid: ObjectId { hi: u64::MAX, lo },
            atime_ns: i64::MIN,
            mtime_ns: i64::MIN,
            mtime_epoch: Epoch(u64::MAX),
            ctime_ns: i64::MIN,
            chunk_size: u64::MAX,
            xattrs: true,
            target: vec![],
            names: Names::Counted(u32::MAX),
        };
        let node = Node { parent: ObjectId { hi: u64::MAX, lo: u64::MAX }, name: name.to_vec(), record };
        KeptInode { lookups: u64::MAX, node, fate: Fate::default() }
    }

    #[test]
    fn a_successor_finds_what_was_kept_last() {
        let kept = Kept::begin(file()).expect("begun");
        assert_eq!(kept.first_handle(), 1);
        let longest = inode(u64::MAX, &[b'x'; 255]);
        let first = kept.put_inode(None, &inode(1, b"a"));
        let second = kept.put_inode(None, &longest);
        let third = kept.put_inode(None, &inode(3, b"c"));
        kept.drop_inode(first);
        let renamed =
            KeptInode { lookups: 7, fate: Fate { renamed: true, ..Fate::default() }, ..inode(3, b"d") };
        assert_eq!(kept.put_inode(Some(third), &renamed), third);
        let handle = KeptHandle { number: 5, inode: 16, flags: Some(i32::MIN), request: u64::MAX };
        let gone = kept.put_handle(None, &KeptHandle { flags: None, ..handle });
        let slot = kept.put_handle(None, &handle);
        kept.drop_handle(gone);
        let object = ObjectId { hi: u64::MAX, lo: u64::MAX };
        let request = KeptRequest { number: u64::MAX, object, other: Some(object) };
        let begun = kept.put_request(None, &request);
        let lease = KeptLease { client: ClientId::from_bytes([9; 16]), grants_locks: true };
        kept.put_lease(lease);

        let (kept, inherited) = again(&kept).expect("resumed");
        assert_eq!(inherited.inodes, [(second, longest), (third, renamed)]);
        assert_eq!(inherited.handles, [(slot, handle)]);
        assert_eq!(inherited.requests, [(begun, request)]);
        assert_eq!(inherited.lease, Some(lease));
        assert!(kept.first_handle() > 1 << 40, "numbers are not used again");
        assert_eq!(kept.put_inode(None, &inode(4, b"e")), first, "a free slot is used");
        assert_eq!(again(&kept).expect("resumed").1.inodes.len(), 3);
    }

    #[test]
    fn a_successor_finds_gathered_writes_in_their_order() {
        let kept = Kept::begin(file()).expect("begun");
        let longest = vec![7; 1 << 20];
        let first = kept.put_write(16, u64::MAX, &longest).expect("room");
        let gone = kept.put_write(17, 5, b"gone").expect("room");
        kept.put_write(17, 5, b"kept").expect("room");
        kept.drop_write(gone);
        kept.put_write(17, 6, b"last").expect("room");
        let (kept, inherited) = again(&kept).expect("resumed");
        let found: Vec<_> =
            inherited.writes.iter().map(|write| (write.inode, write.offset, write.data.as_slice())).collect();
        assert_eq!(found, [(16, u64::MAX, longest.as_slice()), (17, 5, b"kept"), (17, 6, b"last")]);
        assert!(kept.put_write(18, 0, b"more").expect("room").order > inherited.writes[2].kept.order);
        kept.drop_write(first);
        let (kept, inherited) = again(&kept).expect("resumed");
        assert_eq!(inherited.writes.len(), 3);
        for write in inherited.writes {
            kept.drop_write(write.kept);
        }
        assert!(again(&kept).expect("resumed").1.writes.is_empty());
    }

    #[test]
    fn a_successor_finds_changes_of_attributes_as_they_were_last() {
        let kept = Kept::begin(file()).expect("begun");
        let all = SetAttributes {
            mode: Some(u32::MAX),
            uid: Some(u32::MAX),
            gid: Some(u32::MAX),
            size: None,
            atime: Some(Change::To(i64::MIN)),
            mtime: Some(Change::To(i64::MIN)),
        };
        let longest = KeptChange::of(u64::MAX, &all, i64::MIN);
        let gone = kept.put_change(None, &longest);
        let slot = kept.put_change(None, &KeptChange::of(7, &all, 1));
        kept.drop_change(gone);
        assert_eq!(kept.put_change(Some(slot), &longest), slot);
        let (_, inherited) = again(&kept).expect("resumed");
        assert_eq!(inherited.changes, [(slot, longest)]);
        assert_eq!(inherited.changes[0].1.attributes(), all);
    }

    #[test]
    fn the_target_of_a_link_is_left_out() {
        let kept = Kept::begin(file()).expect("begun");
        let mut link = inode(1, &[b'l'; 255]);
        link.node.record = Record { kind: Kind::Symlink, target: vec![b't'; 4095], ..link.node.record };
        kept.put_inode(None, &link);
        let (_, inherited) = again(&kept).expect("resumed");
        assert!(inherited.inodes[0].1.node.record.target.is_empty());
        assert!(inherited.lease.is_none());
    }

    #[test]
    fn no_successor_goes_by_a_file_that_lacks_something_or_is_another() {
        let kept = Kept::begin(file()).expect("begun");
        kept.put_inode(None, &inode(1, &[b'x'; 600]));
        assert!(again(&kept).is_err(), "one inode is missing");
        assert!(Kept::resume(file()).is_err());
        let other = file();
        other.write_all_at(b"weirknt\x01", 0).expect("written");
        assert!(Kept::resume(other).is_err());
        let torn = Kept::begin(file()).expect("begun");
        let slot = torn.put_handle(None, &KeptHandle { number: 1, inode: 1, flags: None, request: 0 });
        torn.file.write_all_at(&[0xff, 0xff], HANDLES.offset(slot)).expect("written");
        assert!(again(&torn).is_err());
    }
}
