//! Reads the manifests that Kubernetes would get: the same kinds and fields, applied to engines on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use weir_management::v1::{ContainerCreateRequest, ContainerType, PoolCreateRequest};

use crate::error::CliError;
use crate::size::Size;

/// API group and version of our kinds.
const API_VERSION: &str = "storage.weir.dev/v1alpha1";

/// Largest manifest that is read, in bytes; kubectl sends no more than this either (the API server's limit).
const MANIFEST_BYTES_MAX: u64 = 3 << 20;

/// What the manifests ask for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Manifests {
    /// Engines, when a `StorageCluster` says so.
    pub cluster: Option<Cluster>,
    /// Pools, in the order of the files.
    pub pools: Vec<PoolCreateRequest>,
    /// Containers, in the order of the files.
    pub containers: Vec<ContainerCreateRequest>,
    /// Objects that mean nothing here, as `Kind/name`.
    pub ignored: Vec<String>,
    /// Names of Pool objects, by which containers refer to them, and their labels.
    labels: BTreeMap<String, String>,
}

/// Shape of a `StorageCluster`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// Name.
    pub name: String,
    /// Number of engines.
    pub engines: u32,
    /// Targets of each.
    pub targets: u32,
    /// Bytes of each engine.
    pub size: u64,
    /// libfabric provider.
    pub provider: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    api_version: String,
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Quantity {
    Number(u64),
    Text(String),
}

impl Quantity {
    fn bytes(&self) -> Result<u64, String> {
        match self {
            Self::Number(bytes) => Ok(*bytes),
            Self::Text(text) => text.parse::<Size>().map(|size| size.0).map_err(|error| error.to_string()),
        }
    }
}

#[derive(Deserialize)]
struct Reference {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClusterSpec {
    engines: EnginesSpec,
    storage: StorageSpec,
    #[serde(default)]
    fabric: FabricSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EnginesSpec {
    replicas: u32,
    #[serde(default = "two")]
    targets_per_engine: u32,
}

fn two() -> u32 {
    2
}

#[derive(Deserialize)]
struct StorageSpec {
    size: Quantity,
}

#[derive(Deserialize)]
struct FabricSpec {
    #[serde(default = "tcp")]
    provider: String,
}

impl Default for FabricSpec {
    fn default() -> Self {
        Self { provider: tcp() }
    }
}

fn tcp() -> String {
    "tcp".to_owned()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolSpec {
    #[serde(default)]
    label: String,
    size: Quantity,
    #[serde(default)]
    ranks: Vec<u32>,
    #[serde(default)]
    object_class: String,
    #[serde(default)]
    redundancy_factor: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSpec {
    pool_ref: Reference,
    #[serde(default)]
    label: String,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    quota: Option<Quantity>,
    #[serde(default)]
    object_class: String,
    chunk_size: Option<Quantity>,
    owner: Option<Owner>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
    mode: Option<String>,
}

impl Manifests {
    /// Reads manifest files.
    ///
    /// # Errors
    /// When a file cannot be read, or an object of our kinds is not valid: the message names file, object and field.
    pub fn load(paths: &[PathBuf]) -> Result<Self, CliError> {
        let mut manifests = Self::default();
        for path in paths {
            let wrong = |reason: String| CliError::Manifest { path: path.clone(), reason };
            let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
            if size > MANIFEST_BYTES_MAX {
                return Err(wrong(format!("{size} bytes, more than {MANIFEST_BYTES_MAX}")));
            }
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            manifests.add(&text).map_err(wrong)?;
        }
        manifests.resolve()?;
        Ok(manifests)
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            let object: Object = serde_json::from_value(document).map_err(|error| error.to_string())?;
            let name = format!("{}/{}", object.kind, object.metadata.name);
            self.add_object(object).map_err(|reason| format!("{name}: {reason}"))?;
        }
        Ok(())
    }

    fn add_object(&mut self, object: Object) -> Result<(), String> {
        let Object { api_version, kind, metadata, spec } = object;
        if api_version != API_VERSION {
            self.ignored.push(format!("{kind}/{}", metadata.name));
            return Ok(());
        }
        match kind.as_str() {
            "StorageCluster" => self.add_cluster(metadata.name, field(spec)?),
            "Pool" => self.add_pool(metadata.name, field(spec)?),
            "Container" => self.add_container(metadata.name, field(spec)?),
            _ => {
                self.ignored.push(format!("{kind}/{}", metadata.name));
                Ok(())
            }
        }
    }

    fn add_cluster(&mut self, name: String, spec: ClusterSpec) -> Result<(), String> {
        if let Some(other) = &self.cluster {
            return Err(format!(
                "StorageCluster {} is there already: a folder of `weir dev` holds one system",
                other.name
            ));
        }
        let size = spec.storage.size.bytes().map_err(|reason| format!("spec.storage.size: {reason}"))?;
        self.cluster = Some(Cluster {
            name,
            engines: spec.engines.replicas,
            targets: spec.engines.targets_per_engine,
            size,
            provider: spec.fabric.provider,
        });
        Ok(())
    }

    fn add_pool(&mut self, name: String, spec: PoolSpec) -> Result<(), String> {
        let size_bytes = spec.size.bytes().map_err(|reason| format!("spec.size: {reason}"))?;
        let label = if spec.label.is_empty() { name.clone() } else { spec.label };
        self.labels.insert(name, label.clone());
        self.pools.push(PoolCreateRequest {
            label,
            size_bytes,
            ranks: spec.ranks,
            redundancy_factor: spec.redundancy_factor,
            object_class: spec.object_class,
            tenant: 0,
        });
        Ok(())
    }

    fn add_container(&mut self, name: String, spec: ContainerSpec) -> Result<(), String> {
        let kind = match spec.kind.as_deref() {
            None | Some("posix") => ContainerType::Posix,
            Some("object") => ContainerType::Object,
            Some(other) => return Err(format!("spec.type: \"{other}\" is neither posix nor object")),
        };
        let bytes = |quantity: Option<Quantity>, path: &str| {
            quantity.map_or(Ok(0), |quantity| quantity.bytes().map_err(|reason| format!("{path}: {reason}")))
        };
        let owner = spec.owner.unwrap_or(Owner { uid: 0, gid: 0, mode: None });
        let mode = owner.mode.as_deref().unwrap_or("0755");
        let mode =
            u32::from_str_radix(mode, 8).map_err(|_| format!("spec.owner.mode: \"{mode}\" is not octal"))?;
        self.containers.push(ContainerCreateRequest {
            pool: spec.pool_ref.name,
            label: if spec.label.is_empty() { name } else { spec.label },
            r#type: kind.into(),
            quota_bytes: bytes(spec.quota, "spec.quota")?,
            object_class: spec.object_class,
            chunk_size_bytes: bytes(spec.chunk_size, "spec.chunkSize")?,
            attributes: spec.attributes.into_iter().collect(),
            uid: owner.uid,
            gid: owner.gid,
            mode,
        });
        Ok(())
    }

    /// Puts the pools' labels where containers name Pool objects. A name that no manifest defines is taken as the label
    /// of a pool that is there already.
    fn resolve(&mut self) -> Result<(), CliError> {
        for container in &mut self.containers {
            if let Some(label) = self.labels.get(&container.pool) {
                container.pool.clone_from(label);
            }
        }
        for container in &self.containers {
            let twins = self
                .containers
                .iter()
                .filter(|other| other.pool == container.pool && other.label == container.label);
            if twins.count() > 1 {
                return Err(CliError::Manifest {
                    path: PathBuf::from("(all)"),
                    reason: format!(
                        "Container/{}: the label is used twice in pool {}",
                        container.label, container.pool
                    ),
                });
            }
        }
        Ok(())
    }
}

fn field<T: serde::de::DeserializeOwned>(spec: Value) -> Result<T, String> {
    serde_json::from_value(spec).map_err(|error| format!("spec: {error}"))
}

/// A `--mount` argument: `[POOL/]CONTAINER=DIR`.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, Deserialize)]
pub struct MountRequest {
    /// Pool; none means the pool of the only container of that label.
    pub pool: Option<String>,
    /// Container.
    pub container: String,
    /// Directory; made when it is not there.
    pub directory: PathBuf,
}

impl std::str::FromStr for MountRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (names, directory) =
            text.split_once('=').ok_or_else(|| format!("\"{text}\" is not [POOL/]CONTAINER=DIR"))?;
        let (pool, container) = match names.split_once('/') {
            Some((pool, container)) => (Some(pool.to_owned()), container),
            None => (None, names),
        };
        if container.is_empty() || directory.is_empty() || pool.as_deref() == Some("") {
            return Err(format!("\"{text}\" is not [POOL/]CONTAINER=DIR"));
        }
        let directory = std::path::absolute(Path::new(directory)).map_err(|error| error.to_string())?;
        Ok(Self { pool, container: container.to_owned(), directory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
apiVersion: storage.weir.dev/v1alpha1
kind: StorageCluster
metadata: {name: dev}
spec:
  engines: {replicas: 3, targetsPerEngine: 4}
  storage: {size: 16Gi, hostPath: {path: /var/lib/weir}}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Pool
metadata:
  name: fast
spec:
  clusterRef: {name: dev}
  label: tank
  size: 10Gi
  objectClass: SX
---
# An object container and a file system.
apiVersion: storage.weir.dev/v1alpha1
kind: Container
metadata: {name: home}
spec:
  poolRef: {name: fast}
  quota: 1Gi
  owner: {uid: 1000, gid: 100, mode: "0775"}
  attributes: {team: a}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Container
metadata: {name: kv}
spec: {poolRef: {name: elsewhere}, type: object, chunkSize: 65536}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {}
"#;

    fn parse(text: &str) -> Result<Manifests, String> {
        let mut manifests = Manifests::default();
        manifests.add(text)?;
        manifests.resolve().map_err(|error| error.to_string())?;
        Ok(manifests)
    }

    #[test]
    fn the_manifests_of_kubernetes_are_understood() {
        let manifests = parse(SAMPLE).expect("valid");
        let cluster = manifests.cluster.expect("there");
        assert_eq!((cluster.engines, cluster.targets, cluster.size), (3, 4, 16 << 30));
        assert_eq!(manifests.pools.len(), 1);
        assert_eq!((manifests.pools[0].label.as_str(), manifests.pools[0].size_bytes), ("tank", 10 << 30));
        let home = &manifests.containers[0];
        assert_eq!((home.pool.as_str(), home.label.as_str(), home.quota_bytes), ("tank", "home", 1 << 30));
        assert_eq!((home.uid, home.gid, home.mode), (1000, 100, 0o775));
        assert_eq!(home.r#type(), ContainerType::Posix);
        let kv = &manifests.containers[1];
        assert_eq!((kv.pool.as_str(), kv.chunk_size_bytes), ("elsewhere", 65536));
        assert_eq!(kv.r#type(), ContainerType::Object);
        assert_eq!(manifests.ignored, ["PersistentVolumeClaim/claim"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_object_and_field() {
        for (from, to, expected) in [
            ("size: 10Gi", "size: tenGi", "Pool/fast: spec.size"),
            ("mode: \"0775\"", "mode: rwx", "Container/home: spec.owner.mode"),
            ("type: object", "type: block", "Container/kv: spec.type"),
            ("replicas: 3", "replicas: many", "StorageCluster/dev: spec"),
            ("quota: 1Gi", "quota: [1]", "Container/home: spec"),
        ] {
            let error = parse(&SAMPLE.replace(from, to)).expect_err(to);
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse("kind: Pool").is_err());
        assert!(parse("a: [").is_err());
        assert!(parse(&format!("{SAMPLE}---\n{SAMPLE}")).is_err());
    }

    #[test]
    fn a_mount_names_container_and_directory() {
        let mount: MountRequest = "tank/home=/mnt/home".parse().expect("valid");
        assert_eq!((mount.pool.as_deref(), mount.container.as_str()), (Some("tank"), "home"));
        assert_eq!("home=/mnt".parse::<MountRequest>().expect("valid").pool, None);
        for bad in ["home", "=/mnt", "home=", "/home=/mnt"] {
            assert!(bad.parse::<MountRequest>().is_err(), "{bad}");
        }
    }
}
