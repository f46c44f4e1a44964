//! A map of versions: what an object holds at each epoch at which it changed, and what each request says to it.

use super::observe::Place;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, PunchScope, Value};
use weir_proto::{Key, ObjectId};

/// Records that were stored together.
#[derive(Clone, Debug)]
pub struct Segment {
    count: u64,
    data: Rc<Vec<u8>>,
    from: usize,
}

/// What an akey holds.
#[derive(Clone, Debug)]
pub enum Held {
    Single(Rc<Vec<u8>>),
    /// Bytes of a record (0: there were only holes), and the records that are there, by their first.
    Array(u32, BTreeMap<u64, Segment>),
}

impl Held {
    /// The records that are there, in as few extents as possible.
    pub fn extents(&self) -> Vec<Extent> {
        let mut found: Vec<Extent> = Vec::new();
        if let Self::Array(_, segments) = self {
            for (index, segment) in segments {
                match found.last_mut().filter(|last| last.end() == *index) {
                    Some(last) => last.count += segment.count,
                    None => found.push(Extent { index: *index, count: segment.count }),
                }
            }
        }
        found
    }

    /// Makes holes.
    fn clear(&mut self, range: Extent) {
        let Self::Array(size, segments) = self else { return };
        let met: Vec<(u64, Segment)> = segments
            .range(..range.end())
            .filter(|(index, segment)| *index + segment.count > range.index)
            .map(|(index, segment)| (*index, segment.clone()))
            .collect();
        for (index, segment) in met {
            segments.remove(&index);
            let end = index + segment.count;
            if index < range.index {
                segments.insert(index, Segment { count: range.index - index, ..segment.clone() });
            }
            if end > range.end() {
                let from = segment.from + (range.end() - index) as usize * *size as usize;
                segments.insert(range.end(), Segment { count: end - range.end(), from, ..segment });
            }
        }
    }

    /// The bytes of a range with zeros for holes, and which of them are real.
    fn read(&self, range: Extent) -> (Vec<u8>, Vec<Extent>) {
        let Self::Array(size, segments) = self else { return (Vec::new(), Vec::new()) };
        let size = *size as usize;
        let mut bytes = vec![0; range.count as usize * size];
        for (index, segment) in segments.range(..range.end()) {
            let (from, to) = ((*index).max(range.index), (index + segment.count).min(range.end()));
            if from < to {
                let source = segment.from + (from - index) as usize * size;
                let len = (to - from) as usize * size;
                bytes[(from - range.index) as usize * size..][..len]
                    .copy_from_slice(&segment.data[source..source + len]);
            }
        }
        let cut = |extent: &Extent| {
            let (from, to) = (extent.index.max(range.index), extent.end().min(range.end()));
            (from < to).then(|| Extent { index: from, count: to - from })
        };
        (bytes, self.extents().iter().filter_map(cut).collect())
    }
}

/// Records that are in both.
pub fn common(extents: &[Extent], others: &[Extent]) -> Vec<Extent> {
    let overlap = |a: &Extent, b: &Extent| {
        let (from, to) = (a.index.max(b.index), a.end().min(b.end()));
        (from < to).then(|| Extent { index: from, count: to - from })
    };
    extents.iter().flat_map(|a| others.iter().filter_map(move |b| overlap(a, b))).collect()
}

/// Akeys of a dkey.
pub type Dkey = BTreeMap<Key, Rc<Held>>;

/// An object at an epoch.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub exists: bool,
    /// Epoch of the newest change.
    pub newest: u64,
    pub dkeys: BTreeMap<Key, Rc<Dkey>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Exists,
    Missing,
    Kind,
    RecordSize,
    /// It would come before changes that don't fit what it makes: no store could have taken these.
    Unfit,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change {
    Update { object: ObjectId, dkey: Key, conditions: Conditions, akeys: Vec<AkeyUpdate>, data: Rc<Vec<u8>> },
    Punch { object: ObjectId, scope: PunchScope, conditions: Conditions },
}

/// What an akey of a fetch is to give.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub size: u64,
    pub present: Vec<Extent>,
    pub bytes: Vec<u8>,
}

impl State {
    pub fn held(&self, dkey: &Key, akey: &Key) -> Option<&Rc<Held>> {
        self.dkeys.get(dkey)?.get(akey)
    }

    /// The state after a change; `None`: nothing changes.
    pub fn after(&self, change: &Change, epoch: u64) -> Result<Option<Self>, Refusal> {
        match change {
            Change::Update { dkey, conditions, akeys, data, .. } => {
                let mut next = self.updated(dkey, *conditions, akeys, data)?;
                next.newest = epoch;
                Ok(Some(next))
            }
            Change::Punch { scope, conditions, .. } => {
                let next = self.punched(scope, conditions.has(Conditions::PUNCH))?;
                Ok(next.map(|next| Self { newest: epoch, ..next }))
            }
        }
    }

    fn updated(
        &self,
        dkey: &Key,
        conditions: Conditions,
        akeys: &[AkeyUpdate],
        data: &Rc<Vec<u8>>,
    ) -> Result<Self, Refusal> {
        refuse_if(conditions.has(Conditions::OBJECT_EXISTS) && !self.exists, Refusal::Missing)?;
        let mut next = self.clone();
        next.exists = true;
        let old = self.dkeys.get(dkey);
        refuse_if(conditions.has(Conditions::DKEY_INSERT) && old.is_some(), Refusal::Exists)?;
        refuse_if(conditions.has(Conditions::DKEY_UPDATE) && old.is_none(), Refusal::Missing)?;
        let mut held: Dkey = old.map(|akeys| Dkey::clone(akeys)).unwrap_or_default();
        let mut at = 0;
        for update in akeys {
            let old = held.get(&update.akey).map(Rc::as_ref);
            let wanted = if conditions.has(Conditions::PER_AKEY) { update.conditions } else { conditions };
            refuse_if(wanted.has(Conditions::AKEY_INSERT) && old.is_some(), Refusal::Exists)?;
            refuse_if(wanted.has(Conditions::AKEY_UPDATE) && old.is_none(), Refusal::Missing)?;
            let new = match (&update.value, old) {
                (Value::Single { .. }, Some(Held::Array(..)))
                | (Value::Array { .. }, Some(Held::Single(_))) => {
                    return Err(Refusal::Kind);
                }
                (Value::Single { size }, _) => {
                    let bytes = data[at..at + *size as usize].to_vec();
                    at += bytes.len();
                    Held::Single(Rc::new(bytes))
                }
                (Value::Array { record_size, extents }, old) => {
                    let mut new = old.cloned().unwrap_or(Held::Array(0, BTreeMap::new()));
                    if let Held::Array(size, _) = &mut new {
                        let differ = *record_size != 0 && *size != 0 && record_size != size;
                        refuse_if(differ, Refusal::RecordSize)?;
                        *size = (*size).max(*record_size);
                    }
                    for extent in extents {
                        new.clear(*extent);
                        if let (Held::Array(size, segments), 1..) = (&mut new, *record_size) {
                            let segment = Segment { count: extent.count, data: Rc::clone(data), from: at };
                            segments.insert(extent.index, segment);
                            at += extent.count as usize * *size as usize;
                        }
                    }
                    new
                }
            };
            held.insert(update.akey.clone(), Rc::new(new));
        }
        next.dkeys.insert(dkey.clone(), Rc::new(held));
        Ok(next)
    }

    fn punched(&self, scope: &PunchScope, must_exist: bool) -> Result<Option<Self>, Refusal> {
        let mut next = self.clone();
        let mut changed = false;
        let mut note = |existed: bool| {
            changed |= existed;
            refuse_if(must_exist && !existed, Refusal::Missing)
        };
        match scope {
            PunchScope::Object => {
                note(self.exists)?;
                next = Self::default();
            }
            PunchScope::Dkeys(dkeys) => {
                for dkey in dkeys {
                    note(self.dkeys.contains_key(dkey))?;
                    next.dkeys.remove(dkey);
                }
            }
            PunchScope::Akeys(dkey, akeys) => {
                let mut held = self.dkeys.get(dkey).map(|akeys| Dkey::clone(akeys));
                for akey in akeys {
                    note(self.held(dkey, akey).is_some())?;
                    held.as_mut().map(|held| held.remove(akey));
                }
                if let Some(held) = held {
                    next.dkeys.insert(dkey.clone(), Rc::new(held));
                }
            }
            PunchScope::DkeyWith(dkey, akeys) => {
                refuse_if(akeys.iter().any(|akey| self.held(dkey, akey).is_none()), Refusal::Missing)?;
                note(self.dkeys.contains_key(dkey))?;
                next.dkeys.remove(dkey);
            }
        }
        Ok(changed.then_some(next))
    }

    /// What a fetch gives, akey by akey.
    pub fn fetch(
        &self,
        dkey: &Key,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Vec<Expected>, Refusal> {
        let missing = conditions.has(Conditions::DKEY_FETCH) && !self.dkeys.contains_key(dkey);
        refuse_if(missing, Refusal::Missing)?;
        let each = akeys.iter().map(|fetch| {
            let held = self.held(dkey, &fetch.akey).map(Rc::as_ref);
            let wanted = if conditions.has(Conditions::PER_AKEY) { fetch.conditions } else { conditions };
            refuse_if(wanted.has(Conditions::AKEY_FETCH) && held.is_none(), Refusal::Missing)?;
            match (&fetch.value, held) {
                (_, None) | (Value::Array { .. }, Some(Held::Array(0, _))) => Ok(Expected::default()),
                (Value::Single { size }, Some(Held::Single(bytes))) => {
                    let len = bytes.len().min(usize::try_from(*size).unwrap_or(usize::MAX));
                    let (size, bytes) = (bytes.len() as u64, bytes[..len].to_vec());
                    Ok(Expected { size, present: Vec::new(), bytes })
                }
                (Value::Array { record_size, extents }, Some(array @ Held::Array(stored, _))) => {
                    refuse_if(*record_size != 0 && record_size != stored, Refusal::RecordSize)?;
                    let mut expected = Expected { size: u64::from(*stored), ..Expected::default() };
                    for extent in extents {
                        let (bytes, present) = array.read(*extent);
                        expected.present.extend(present);
                        if *record_size != 0 {
                            expected.bytes.extend(bytes);
                        }
                    }
                    Ok(expected)
                }
                _ => Err(Refusal::Kind),
            }
        });
        each.collect()
    }

    /// What is there in both, as a search sees it.
    pub fn common(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for (dkey, akeys) in &self.dkeys {
            let Some(others) = other.dkeys.get(dkey) else { continue };
            let shared = akeys.iter().filter_map(|(akey, held)| {
                let records = common(&held.extents(), &others.get(akey)?.extents()).into_iter();
                let segment = |count| Segment { count, data: Rc::default(), from: 0 };
                let segments = records.map(|extent| (extent.index, segment(extent.count)));
                Some((akey.clone(), Rc::new(Held::Array(1, segments.collect()))))
            });
            both.dkeys.insert(dkey.clone(), Rc::new(shared.collect()));
        }
        both
    }

    /// Whether there is what a search has found.
    pub fn has(&self, (dkey, akey, record): &Place) -> bool {
        let Some(akey) = akey else { return self.dkeys.contains_key(dkey) };
        let is_there = |record: &u64| {
            let extents = self.held(dkey, akey).map(|held| held.extents()).unwrap_or_default();
            extents.iter().any(|extent| (extent.index..extent.end()).contains(record))
        };
        self.held(dkey, akey).is_some() && record.as_ref().is_none_or(is_there)
    }

    /// The dkey and akey that a search for keys finds, and the outermost record of it.
    pub fn search(&self, query: &Search) -> Option<Place> {
        let below = |akeys: &Dkey| -> Option<(Option<Key>, Option<u64>)> {
            let record = |akey: &Key| -> Option<(Option<Key>, Option<u64>)> {
                let held = akeys.get(akey)?;
                if !query.extent {
                    return Some((Some(akey.clone()), None));
                }
                let extents = held.extents();
                let record = if query.max {
                    extents.last().map(|last| last.end() - 1)
                } else {
                    extents.first().map(|first| first.index)
                };
                Some((Some(akey.clone()), Some(record?)))
            };
            match &query.akey {
                Some(akey) => record(akey),
                None if query.integer_akeys || query.extent => {
                    let mut names: Vec<&Key> = akeys.keys().collect();
                    if query.max {
                        names.reverse();
                    }
                    names.into_iter().find_map(record)
                }
                None => Some((None, None)),
            }
        };
        let mut dkeys: Vec<&Key> = match &query.dkey {
            Some(dkey) => vec![dkey],
            None => self.dkeys.keys().collect(),
        };
        if query.max {
            dkeys.reverse();
        }
        dkeys.into_iter().find_map(|dkey| {
            let (akey, record) = below(self.dkeys.get(dkey)?)?;
            Some((dkey.clone(), akey, record))
        })
    }
}

/// A search for keys.
#[derive(Clone, Debug)]
pub struct Search {
    pub max: bool,
    pub dkey: Option<Key>,
    pub akey: Option<Key>,
    pub extent: bool,
    pub integer_akeys: bool,
}

fn refuse_if(refused: bool, refusal: Refusal) -> Result<(), Refusal> {
    if refused { Err(refusal) } else { Ok(()) }
}

/// What changes of an epoch have made of an object.
#[derive(Clone, Debug, Default)]
struct Version {
    /// The changes as far as they had an effect: a change with an earlier epoch that comes later is followed by these.
    changes: Rc<Vec<Change>>,
    state: Rc<State>,
}

/// All objects, with their versions by epoch.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    objects: BTreeMap<ObjectId, Rc<BTreeMap<u64, Version>>>,
}

/// Versions that changes will give, by object and epoch: theirs and those of later epochs.
#[derive(Clone, Debug, Default)]
pub struct Plan(BTreeMap<ObjectId, BTreeMap<u64, Version>>);

impl Change {
    pub fn object(&self) -> ObjectId {
        match self {
            Self::Update { object, .. } | Self::Punch { object, .. } => *object,
        }
    }

    /// Whether it is refused where its object doesn't exist.
    pub fn needs_object(&self) -> bool {
        matches!(self, Self::Update { conditions, .. } if conditions.has(Conditions::OBJECT_EXISTS))
    }

    /// What it does to this state, whatever the state was to be. What isn't there isn't punched, and doesn't become so
    /// when it turns out later that it was there.
    fn effect(&self, state: &State) -> Self {
        let mut effect = self.clone();
        match &mut effect {
            Self::Update { conditions, .. } => *conditions = Conditions::NONE,
            Self::Punch { scope, conditions, .. } => {
                *conditions = Conditions::NONE;
                match scope {
                    PunchScope::Object => {}
                    PunchScope::Dkeys(dkeys) => dkeys.retain(|dkey| state.dkeys.contains_key(dkey)),
                    PunchScope::Akeys(dkey, akeys) => akeys.retain(|akey| state.held(dkey, akey).is_some()),
                    PunchScope::DkeyWith(dkey, _) => *scope = PunchScope::Dkeys(vec![dkey.clone()]),
                }
            }
        }
        effect
    }
}

impl Versions {
    pub fn at(&self, object: ObjectId, epoch: u64) -> Rc<State> {
        let found = self.objects.get(&object).and_then(|versions| versions.range(..=epoch).next_back());
        found.map(|(_, version)| Rc::clone(&version.state)).unwrap_or_default()
    }

    /// Whether something changed at exactly this epoch.
    pub fn has(&self, epoch: u64) -> bool {
        self.objects.values().any(|versions| versions.contains_key(&epoch))
    }

    /// The versions that changes give, all or none.
    pub fn plan(&self, changes: &[Change], epoch: u64) -> Result<Plan, Refusal> {
        let mut plan = Plan::default();
        for change in changes {
            let object = change.object();
            let known = plan.0.get(&object).and_then(|versions| versions.get(&epoch));
            let state = known.map_or_else(|| self.at(object, epoch), |version| Rc::clone(&version.state));
            if let Some(next) = state.after(change, epoch)? {
                let version = plan.0.entry(object).or_default().entry(epoch).or_default();
                Rc::make_mut(&mut version.changes).push(change.effect(&state));
                version.state = Rc::new(next);
            }
        }
        for (object, versions) in &mut plan.0 {
            self.follow(*object, epoch, versions)?;
        }
        Ok(plan)
    }

    /// Adds what the versions behind an epoch become.
    fn follow(
        &self,
        object: ObjectId,
        epoch: u64,
        versions: &mut BTreeMap<u64, Version>,
    ) -> Result<(), Refusal> {
        let mut state = Rc::clone(&versions[&epoch].state);
        let later = self.objects.get(&object).into_iter().flat_map(|known| known.range(epoch + 1..));
        for (at, version) in later {
            for change in version.changes.iter() {
                if let Some(next) = state.after(change, *at).map_err(|_| Refusal::Unfit)? {
                    state = Rc::new(next);
                }
            }
            versions.insert(*at, Version { changes: Rc::clone(&version.changes), state: Rc::clone(&state) });
        }
        Ok(())
    }

    /// What was planned has happened.
    pub fn take(&mut self, plan: Plan) {
        for (object, versions) in plan.0 {
            Rc::make_mut(self.objects.entry(object).or_default()).extend(versions);
        }
    }
}
