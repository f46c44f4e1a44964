//! What a run does to its disk, noted write by write and flush by flush, and every content that a power failure could
//! have left at any moment of it.

use core::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use weir_media::memory::MemoryDevice;
use weir_media::sim::SECTOR;
use weir_media::{Device, DeviceStats, DmaBuf, IoFuture, Slice};
use weir_runtime::random::Random;

/// Something that happened to the disk.
#[derive(Clone, Debug)]
enum Event {
    /// From here on some of it may be on the media.
    WriteBegan(u64),
    WriteDone,
    /// The write went past the cache.
    StableDone(u64),
    /// With the writes that had completed before it.
    FlushDone(Vec<u64>),
}

struct Write {
    offset: u64,
    data: Rc<Vec<u8>>,
}

#[derive(Default)]
struct Log {
    writes: Vec<Write>,
    events: Vec<Event>,
    completed: Vec<u64>,
}

/// A device that notes what goes to the one below it.
#[derive(Clone)]
pub struct Recorder {
    below: Rc<dyn Device>,
    log: Rc<RefCell<Log>>,
}

impl Recorder {
    pub fn new(below: Rc<dyn Device>) -> Self {
        Self { below, log: Rc::default() }
    }

    /// Events so far: a moment of the run.
    pub fn moment(&self) -> usize {
        self.log.borrow().events.len()
    }

    fn begin(&self, offset: u64, data: &[Slice]) -> u64 {
        let mut log = self.log.borrow_mut();
        let id = log.writes.len() as u64;
        let data = data.iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
        log.writes.push(Write { offset, data: Rc::new(data) });
        log.events.push(Event::WriteBegan(id));
        id
    }

    fn start(&self, offset: u64, data: Vec<Slice>, stable: bool) -> IoFuture<()> {
        let (log, id) = (Rc::clone(&self.log), self.begin(offset, &data));
        let write =
            if stable { self.below.write_stable(offset, data) } else { self.below.write(offset, data) };
        Box::pin(async move {
            write.await?;
            let log = &mut *log.borrow_mut();
            if stable {
                log.events.push(Event::StableDone(id));
            } else {
                log.completed.push(id);
                log.events.push(Event::WriteDone);
            }
            Ok(())
        })
    }
}

impl Device for Recorder {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        self.below.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.start(offset, data, false)
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.start(offset, data, true)
    }

    fn flush(&self) -> IoFuture<()> {
        let (log, covered) = (Rc::clone(&self.log), self.log.borrow().completed.clone());
        let flush = self.below.flush();
        Box::pin(async move {
            flush.await?;
            let log = &mut *log.borrow_mut();
            log.completed.retain(|id| !covered.contains(id));
            log.events.push(Event::FlushDone(covered));
            Ok(())
        })
    }

    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.below.prepare(offset, len)
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        self.below.first_data(from)
    }

    fn stats(&self) -> DeviceStats {
        self.below.stats()
    }
}

/// Contents that a sector may have after a crash beside its stable one: of writes in the order in which they began.
type Loose = BTreeMap<u64, Vec<Content>>;

/// The write it is of, its bytes, and where the sector is in them.
#[derive(Clone)]
struct Content {
    write: u64,
    data: Rc<Vec<u8>>,
    from: usize,
}

/// Goes through a run event by event, with the stable content and what is loose at each moment.
pub struct Replay {
    log: Rc<RefCell<Log>>,
    stable: MemoryDevice,
    at: usize,
    loose: Vec<u64>,
    /// Contents that were seen, with what had been acknowledged then.
    seen: HashMap<(usize, Vec<(u64, u64)>), usize>,
    flushes: usize,
    /// Newest write of each sector that is stable: older ones can't come back.
    newest: HashMap<u64, u64>,
    /// Loose sectors of each moment of which everything was tried that a power failure could leave.
    pub whole: Vec<usize>,
}

/// How many contents are tried.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Everything that may be kept of loose sectors, if that is at most so many ways as subsets of this many have.
    pub whole: usize,
    /// Of more of them at most this many are lost alone, kept alone, or the end of a prefix.
    pub spread: usize,
    /// Random subsets besides.
    pub random: u64,
}

impl Replay {
    pub fn new(recorder: &Recorder) -> Self {
        let stable = MemoryDevice::new(recorder.size());
        let log = Rc::clone(&recorder.log);
        Self {
            log,
            stable,
            at: 0,
            loose: Vec::new(),
            seen: HashMap::new(),
            flushes: 0,
            newest: HashMap::new(),
            whole: Vec::new(),
        }
    }

    /// Lets the next event happen. `false`: there is none.
    pub fn advance(&mut self) -> bool {
        let log = Rc::clone(&self.log);
        let log = log.borrow();
        let Some(event) = log.events.get(self.at) else { return false };
        self.at += 1;
        let settled = match event {
            Event::WriteBegan(id) => {
                self.loose.push(*id);
                return true;
            }
            Event::WriteDone => return true,
            Event::StableDone(id) => vec![*id],
            Event::FlushDone(covered) => covered.clone(),
        };
        self.flushes += 1;
        for id in &settled {
            let write = &log.writes[*id as usize];
            for part in (0..write.data.len()).step_by(SECTOR) {
                let at = write.offset + part as u64;
                let newest = self.newest.entry(at).or_insert(*id);
                // Completed in another order than begun: the one that was begun last counts, like on the disk below.
                if *newest <= *id {
                    *newest = *id;
                    self.stable.overwrite(at, &write.data[part..part + SECTOR]);
                }
            }
        }
        self.loose.retain(|id| !settled.contains(id));
        true
    }

    pub fn moment(&self) -> usize {
        self.at
    }

    fn loose(&self) -> Loose {
        let log = self.log.borrow();
        let mut loose = Loose::new();
        for id in &self.loose {
            let write = &log.writes[*id as usize];
            for part in (0..write.data.len()).step_by(SECTOR) {
                let at = write.offset + part as u64;
                if self.newest.get(&at).is_none_or(|newest| newest < id) {
                    let content = Content { write: *id, data: Rc::clone(&write.data), from: part };
                    loose.entry(at).or_default().push(content);
                }
            }
        }
        // What is there already can't be lost.
        let is_new = |at: u64, content: &Content| {
            let Content { data, from, .. } = content;
            self.stable.bytes(at, SECTOR) != data[*from..from + SECTOR]
        };
        loose.retain(|at, contents| contents.iter().any(|content| is_new(*at, content)));
        loose
    }

    /// All that may be kept of loose sectors, of each none or one of its contents by its index; `None`: in too many ways.
    fn all_subsets(sectors: &[(u64, usize)], whole: usize) -> Option<Vec<BTreeMap<u64, usize>>> {
        let ways = sectors.iter().try_fold(1_usize, |ways, (_, contents)| ways.checked_mul(contents + 1));
        let ways = ways.filter(|ways| *ways <= 1 << whole)?;
        let subset = |mut way: usize| {
            let kept = sectors.iter().filter_map(|(at, contents)| {
                let chosen = way % (contents + 1);
                way /= contents + 1;
                Some((*at, chosen.checked_sub(1)?))
            });
            kept.collect()
        };
        Some((0..ways).map(subset).collect())
    }

    /// What to keep of loose sectors where it can't be everything: none, all, some each lost alone, kept alone or the end of
    /// a prefix, and random ones.
    fn some_subsets(sectors: &[(u64, usize)], bounds: Bounds, some: &Random) -> Vec<BTreeMap<u64, usize>> {
        let count = sectors.len();
        let newest = |keep: &dyn Fn(usize) -> bool| -> BTreeMap<u64, usize> {
            let kept = sectors.iter().enumerate().filter(|(number, _)| keep(*number));
            kept.map(|(_, (at, contents))| (*at, contents - 1)).collect()
        };
        let mut subsets = vec![newest(&|_| false), newest(&|_| true)];
        let step = count.div_ceil(bounds.spread);
        for chosen in (some.below(step as u64) as usize..count).step_by(step) {
            subsets.push(newest(&|number| number != chosen));
            subsets.push(newest(&|number| number == chosen));
            subsets.push(newest(&|number| number < chosen));
        }
        for _ in 0..bounds.random {
            let chance = [0.1, 0.5, 0.9][some.below(3) as usize];
            let kept = sectors.iter().filter(|_| some.chance(chance));
            subsets.push(kept.map(|(at, contents)| (*at, some.below(*contents as u64) as usize)).collect());
        }
        subsets
    }

    /// Contents that a power failure may leave now. Those that were tried before with as much acknowledged are left out.
    pub fn contents(&mut self, acknowledged: usize, bounds: Bounds, some: &Random) -> Vec<MemoryDevice> {
        let loose = self.loose();
        let sectors: Vec<(u64, usize)> = loose.iter().map(|(at, contents)| (*at, contents.len())).collect();
        let all = Self::all_subsets(&sectors, bounds.whole);
        if all.is_some() {
            self.whole.push(sectors.len());
        }
        let mut devices = Vec::new();
        for subset in all.unwrap_or_else(|| Self::some_subsets(&sectors, bounds, some)) {
            let content = subset.iter().map(|(at, content)| (*at, loose[at][*content].write));
            let key = (self.flushes, content.collect());
            if self.seen.insert(key, acknowledged) == Some(acknowledged) {
                continue;
            }
            let device = self.stable.copy(self.stable.size());
            for (at, content) in subset {
                let Content { data, from, .. } = &loose[&at][content];
                device.overwrite(at, &data[*from..from + SECTOR]);
            }
            devices.push(device);
        }
        self.seen.retain(|(flushes, _), _| *flushes == self.flushes);
        devices
    }
}
