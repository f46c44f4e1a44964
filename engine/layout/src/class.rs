//! Object classes: how many groups of targets an object spreads over, and how a group protects its data.
//!
//! Names and numbers are those of DAOS 2.x (`daos_oclass_id_t`): the id is the redundancy code in bits 24–31 and the
//! group count in bits 0–15, where 0xffff stands for "all targets".

use core::cell::Cell;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use weir_proto::ObjectId;
use weir_proto::pool::PoolMap;

use crate::domains;

/// Group counts for which classes have registered names; `X` is the count "all".
pub const PREDEFINED_GROUPS: [u16; 8] = [1, 2, 4, 6, 8, 12, 16, 32];

/// The group count that stands for "as many as the pool has targets for".
pub(crate) const ALL_GROUPS: u16 = 0xffff;

/// Redundancy code of classes without redundancy (`OR_RP_1`).
const NO_REDUNDANCY: u8 = 1;

/// Redundancy codes of replication, with their number of replicas.
const REPLICATION: [(u8, u16); 13] = [
    (8, 2),
    (9, 3),
    (10, 4),
    (11, 5),
    (12, 6),
    (13, 8),
    (14, 12),
    (15, 16),
    (16, 24),
    (17, 32),
    (18, 48),
    (19, 64),
    (20, 128),
];

/// Redundancy codes of erasure coding, with their numbers of data and parity cells.
const ERASURE: [(u8, u16, u16); 11] = [
    (32, 2, 1),
    (33, 2, 2),
    (34, 4, 1),
    (35, 4, 2),
    (36, 8, 1),
    (37, 8, 2),
    (38, 16, 1),
    (39, 16, 2),
    (40, 4, 3),
    (41, 8, 3),
    (42, 16, 3),
];

/// Most replicas of a group that are served: a leader sends each change to all others by itself. Layouts are computed for all.
pub const REPLICAS_SERVED: usize = 6;

thread_local! {
    /// Whether this thread serves objects with replicas in any pool.
    static SERVES_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Has all engines and clients of this thread take objects with replicas in pools without redundancy, too, from now on: for simulated
/// tests of the changes of such objects alone.
#[doc(hidden)]
pub fn serve_replicas_here() {
    SERVES_HERE.set(true);
}

/// Whether this thread serves objects with replicas in any pool.
#[must_use]
pub fn serves_all_replicas() -> bool {
    SERVES_HERE.get()
}

/// The redundancy factors for which data is served.
#[must_use]
pub fn served_factors() -> RangeInclusive<u32> {
    let is_served =
        |factor| ObjectClass::for_redundancy(factor).is_some_and(|class| class.ensure_supported().is_ok());
    let mut most = 0;
    while is_served(most + 1) {
        most += 1;
    }
    0..=most
}

/// The classes that are served, for messages.
const SERVED_CLASSES: &str = "S1, S2, S4, S6, S8, S12, S16, S32 or SX, or with two to six replicas RP_2G1, RP_2G2, RP_2G4, RP_2G6, RP_2G8, RP_2G12, RP_2G16, RP_2G32 or RP_2GX, and so to RP_6GX";

/// Why an object class can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassError {
    /// Nothing of that name.
    #[error("object class \"{0}\" is unknown; use {served}", served = SERVED_CLASSES)]
    UnknownName(String),
    /// Nothing of that number.
    #[error("object class {0:#x} is unknown; use {served}", served = SERVED_CLASSES)]
    UnknownId(u32),
    /// A class with redundancy that isn't served.
    #[error("object class {0} {lack}, which is not supported yet; use {served}", lack = .0.protection(), served = SERVED_CLASSES)]
    NotSupported(ObjectClass),
    /// More replicas than the pool has fault domains.
    #[error("object class {0} needs {replicas} fault domains, the pool has {1}; use a class with fewer replicas", replicas = .0.replicas())]
    Domains(ObjectClass, usize),
}

/// A class of objects, e.g. `S4` or `RP_2GX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectClass {
    redundancy: u8,
    groups: u16,
}

impl ObjectClass {
    /// One target.
    pub const S1: Self = Self { redundancy: NO_REDUNDANCY, groups: 1 };
    /// Every target of the pool.
    pub const SX: Self = Self { redundancy: NO_REDUNDANCY, groups: ALL_GROUPS };

    /// The class an object id carries.
    ///
    /// # Errors
    /// When the redundancy code or the group count has no meaning.
    pub fn of(object: ObjectId) -> Result<Self, ClassError> {
        let id = (u32::from(object.redundancy()) << 24) | u32::from(object.groups());
        Self::from_id(id)
    }

    /// The class of this number (`daos_oclass_id_t`).
    ///
    /// # Errors
    /// When the number has no meaning.
    pub fn from_id(id: u32) -> Result<Self, ClassError> {
        let [redundancy, middle, high, low] = id.to_be_bytes();
        let groups = u16::from_be_bytes([high, low]);
        let class = Self { redundancy, groups };
        let known = redundancy == NO_REDUNDANCY || class.replicas() > 1 || class.cells().is_some();
        if middle != 0 || groups == 0 || !known {
            return Err(ClassError::UnknownId(id));
        }
        Ok(class)
    }

    /// The number of the class (`daos_oclass_id_t`).
    #[must_use]
    pub const fn id(self) -> u32 {
        ((self.redundancy as u32) << 24) | self.groups as u32
    }

    /// Redundancy code, as it stands in object ids.
    #[must_use]
    pub const fn redundancy(self) -> u8 {
        self.redundancy
    }

    /// Group count, as it stands in object ids; 0xffff for all.
    #[must_use]
    pub const fn groups(self) -> u16 {
        self.groups
    }

    /// The object id with this class and the given type in place.
    #[must_use]
    pub const fn encode(self, object: ObjectId, kind: u8) -> ObjectId {
        object.with_class(kind, self.redundancy, self.groups)
    }

    /// Checks that this build can place and serve objects of the class.
    ///
    /// # Errors
    /// For classes with erasure coding, and with more than [`REPLICAS_SERVED`] replicas.
    pub fn ensure_supported(self) -> Result<Self, ClassError> {
        if self.replicas() > REPLICAS_SERVED {
            return Err(ClassError::NotSupported(self));
        }
        self.ensure_placed()
    }

    /// Checks that objects of the class can be laid out.
    ///
    /// # Errors
    /// For classes with erasure coding.
    pub(crate) fn ensure_placed(self) -> Result<Self, ClassError> {
        if self.cells().is_none() { Ok(self) } else { Err(ClassError::NotSupported(self)) }
    }

    /// The class of new objects in containers that have to survive the loss of so many fault domains, for objects of any
    /// type: replicas in as many groups as the pool has places for. `None`: no class does.
    #[must_use]
    pub fn for_redundancy(factor: u32) -> Option<Self> {
        let redundancy = match factor {
            0 => NO_REDUNDANCY,
            factor => {
                let row =
                    REPLICATION.iter().find(|(_, replicas)| u32::from(*replicas) == factor.saturating_add(1));
                row?.0
            }
        };
        Some(Self { redundancy, groups: ALL_GROUPS })
    }

    /// How many fault domains may be lost without losing an object.
    #[must_use]
    pub fn survives(self) -> u32 {
        let row = REPLICATION.iter().find(|(code, _)| *code == self.redundancy);
        row.map_or(0, |(_, replicas)| u32::from(*replicas) - 1)
    }

    /// The same protection in one group.
    #[must_use]
    pub const fn narrow(self) -> Self {
        self.with_groups(1)
    }

    /// The same protection in as many groups as the pool has places for.
    #[must_use]
    pub const fn wide(self) -> Self {
        self.with_groups(ALL_GROUPS)
    }

    /// The same protection in so many groups.
    pub(crate) const fn with_groups(self, groups: u16) -> Self {
        Self { groups, ..self }
    }

    /// Number of replicas in each group; 1 for classes without replication.
    #[must_use]
    pub fn replicas(self) -> usize {
        let row = REPLICATION.iter().find(|(code, _)| *code == self.redundancy);
        row.map_or(1, |(_, replicas)| usize::from(*replicas))
    }

    /// The class that a new object gets instead, for a map.
    ///
    /// Without redundancy: while targets of the pool are down, with `d` of `n` targets down, as many groups as one in `d + 1`
    /// targets. Then one in three object ids (1/e of them at least) has a layout without those that are down. Without
    /// any it is the class itself, as with fewer groups.
    ///
    /// With replicas: as many groups as the pool has places for, so that the object keeps its width when the pool grows.
    #[must_use]
    pub fn around(self, map: &PoolMap) -> Self {
        if self.replicas() > 1 {
            let seats = domains::seats(map, |position| map.targets[position].state.takes_writes());
            let most = domains::most_groups(&domains::sizes(&seats), self.replicas());
            return self.with_most(most);
        }
        let down = map.down().count();
        if down == 0 || self.cells().is_some() {
            return self;
        }
        self.with_most(map.targets.len() / (down + 1))
    }

    /// The class with at most so many groups, and with one at least.
    fn with_most(self, groups: usize) -> Self {
        let most = u16::try_from(groups).unwrap_or(ALL_GROUPS - 1).clamp(1, ALL_GROUPS - 1);
        Self { groups: self.groups.min(most), ..self }
    }

    /// Parses a class name and checks that it is supported.
    ///
    /// # Errors
    /// For unknown names, and for classes that aren't served.
    pub fn parse_supported(name: &str) -> Result<Self, ClassError> {
        name.parse::<Self>()?.ensure_supported()
    }

    /// How a class with redundancy protects data, for messages.
    fn protection(self) -> String {
        if self.cells().is_some() {
            return "stores data with erasure coding".to_owned();
        }
        format!("stores data with {} replicas", self.replicas())
    }

    fn cells(self) -> Option<(u16, u16)> {
        let row = ERASURE.iter().find(|(code, ..)| *code == self.redundancy);
        row.map(|(_, data, parity)| (*data, *parity))
    }

    fn redundancy_of(protection: &str) -> Option<u8> {
        if let Some(replicas) = protection.strip_prefix("RP_") {
            let replicas = parse_number(replicas)?;
            return REPLICATION.iter().find(|row| row.1 == replicas).map(|row| row.0);
        }
        let (data, parity) = protection.strip_prefix("EC_")?.split_once('P')?;
        let (data, parity) = (parse_number(data)?, parse_number(parity)?);
        ERASURE.iter().find(|row| (row.1, row.2) == (data, parity)).map(|row| row.0)
    }

    fn from_name(name: &str) -> Option<Self> {
        let (redundancy, groups) = if let Some(groups) = name.strip_prefix('S') {
            (NO_REDUNDANCY, groups)
        } else {
            let (protection, groups) = name.rsplit_once('G')?;
            (Self::redundancy_of(protection)?, groups)
        };
        let groups = if groups == "X" {
            ALL_GROUPS
        } else {
            parse_number(groups).filter(|count| PREDEFINED_GROUPS.contains(count))?
        };
        Some(Self { redundancy, groups })
    }
}

/// A decimal number without sign or leading zero.
fn parse_number(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

impl FromStr for ObjectClass {
    type Err = ClassError;

    /// Knows the registered names only, as `daos_oclass_name2id` does.
    fn from_str(name: &str) -> Result<Self, ClassError> {
        Self::from_name(name).ok_or_else(|| ClassError::UnknownName(name.chars().take(32).collect()))
    }
}

impl fmt::Display for ObjectClass {
    /// Prints any group count, as `daos_oclass_id2name` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.replicas(), self.cells()) {
            (_, Some((data, parity))) => write!(f, "EC_{data}P{parity}G")?,
            (1, None) => f.write_str("S")?,
            (replicas, None) => write!(f, "RP_{replicas}G")?,
        }
        if self.groups == ALL_GROUPS { f.write_str("X") } else { self.groups.fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redundancy_factor_has_the_class_that_survives_so_many_losses() {
        for factor in 0..=5 {
            let class = ObjectClass::for_redundancy(factor).expect("a class");
            assert_eq!((class.survives(), class.groups()), (factor, ALL_GROUPS));
            assert_eq!((class.narrow().survives(), class.narrow().groups()), (factor, 1));
        }
        assert_eq!(ObjectClass::for_redundancy(0), Some(ObjectClass::SX));
        assert_eq!(ObjectClass::for_redundancy(1).map(|class| class.to_string()).as_deref(), Some("RP_2GX"));
        assert_eq!((ObjectClass::for_redundancy(6), ObjectClass::for_redundancy(u32::MAX)), (None, None));
    }

    #[test]
    fn up_to_six_replicas_are_served() {
        let is_served = |name: &str| ObjectClass::parse_supported(name).is_ok();
        assert!(is_served("RP_2G1") && is_served("RP_2GX") && is_served("RP_3G1") && is_served("RP_6GX"));
        assert!(!is_served("RP_8G1") && !is_served("RP_128GX"));
        assert_eq!(served_factors(), 0..=5);
    }

    #[test]
    fn every_registered_name_survives_parsing_and_its_number() {
        let mut prefixes = vec!["S".to_owned()];
        prefixes.extend(REPLICATION.iter().map(|row| format!("RP_{}G", row.1)));
        prefixes.extend(ERASURE.iter().map(|row| format!("EC_{}P{}G", row.1, row.2)));
        for prefix in prefixes {
            let counts = PREDEFINED_GROUPS.iter().map(ToString::to_string).chain(["X".to_owned()]);
            for name in counts.map(|count| format!("{prefix}{count}")) {
                let class: ObjectClass = name.parse().expect(&name);
                assert_eq!(class.to_string(), name);
                assert_eq!(ObjectClass::from_id(class.id()), Ok(class));
                let object = class.encode(ObjectId { hi: 5, lo: 6 }, 11);
                assert_eq!(ObjectClass::of(object), Ok(class));
            }
        }
    }

    #[test]
    fn numbers_are_those_of_daos() {
        assert_eq!(ObjectClass::S1.id(), 0x0100_0001);
        assert_eq!(ObjectClass::SX.id(), 0x0100_ffff);
        let id = |name: &str| name.parse::<ObjectClass>().expect(name).id();
        assert_eq!(id("RP_2G1"), 0x0800_0001);
        assert_eq!(id("EC_16P3GX"), 0x2a00_ffff);
    }

    #[test]
    fn names_that_are_not_registered_are_refused() {
        for name in
            ["", "S", "S0", "S3", "s1", "SX1", "S+1", "S01", "RP_7G1", "EC_2P9G1", "RP_2", "S65535", "é"]
        {
            assert!(name.parse::<ObjectClass>().is_err(), "{name}");
        }
        assert_eq!(ObjectClass::from_id(0x0100_0003).expect("any group count").to_string(), "S3");
        for id in [0, 1, 0x0100_0000, 0x0101_0001, 0x0200_0001] {
            assert_eq!(ObjectClass::from_id(id), Err(ClassError::UnknownId(id)));
        }
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let refused = |name: &str| ObjectClass::parse_supported(name).expect_err(name).to_string();
        let replicas = refused("RP_8G1");
        assert!(
            replicas.contains("RP_8G1 stores data with 8 replicas, which is not supported yet"),
            "{replicas}"
        );
        assert!(replicas.contains("RP_2GX"), "{replicas}");
        let coded = refused("EC_2P1GX");
        assert!(
            coded.contains("EC_2P1GX stores data with erasure coding, which is not supported yet"),
            "{coded}"
        );
        assert_eq!(ObjectClass::parse_supported("SX"), Ok(ObjectClass::SX));
    }
}
