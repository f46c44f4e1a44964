//! Reads the manifests that Kubernetes would get: the same kinds and fields, applied to engines on this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use weir_management::v1::{
    ContainerCreateRequest, ContainerType, PoolCreateRequest, PoolSetPropertiesRequest,
};

use super::quantity::Quantity;
use crate::error::CliError;

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
    /// What is set of them once they are there.
    pub settings: Vec<PoolSetPropertiesRequest>,
    /// Containers, in the order of the files.
    pub containers: Vec<ContainerCreateRequest>,
    /// Objects that mean nothing here, as `Kind/name`.
    pub ignored: Vec<String>,
    /// Names of Pool objects, and the clusters that they name.
    clusters: Vec<(String, String)>,
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

/// An object of any kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    api_version: String,
    kind: String,
    #[serde(default)]
    metadata: Metadata,
}

/// An object of ours. A field that is misspelt is refused, as kubectl does, not left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ours<S> {
    spec: S,
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    #[serde(rename = "metadata")]
    _metadata: IgnoredAny,
    #[serde(default, rename = "status")]
    _status: IgnoredAny,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    name: String,
}

/// What becomes of data when an object is deleted, which no object is here.
#[derive(Deserialize)]
enum DeletionPolicy {
    Retain,
    Delete,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterSpec {
    engines: EnginesSpec,
    storage: StorageSpec,
    #[serde(default)]
    fabric: FabricSpec,
    #[serde(default, rename = "deletionPolicy")]
    _deletion_policy: Option<DeletionPolicy>,
    #[serde(default, rename = "image")]
    _image: IgnoredAny,
    #[serde(default, rename = "ports")]
    _ports: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EnginesSpec {
    replicas: u32,
    #[serde(default = "two")]
    targets_per_engine: u32,
    #[serde(default, rename = "failureDomains")]
    _failure_domains: IgnoredAny,
    #[serde(default, rename = "logLevel")]
    _log_level: IgnoredAny,
    #[serde(default, rename = "lost")]
    _lost: IgnoredAny,
    #[serde(default, rename = "nodeSelector")]
    _node_selector: IgnoredAny,
    #[serde(default, rename = "resources")]
    _resources: IgnoredAny,
    #[serde(default, rename = "seccompProfile")]
    _seccomp_profile: IgnoredAny,
    #[serde(default, rename = "spread")]
    _spread: IgnoredAny,
    #[serde(default, rename = "tolerations")]
    _tolerations: IgnoredAny,
}

fn two() -> u32 {
    2
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StorageSpec {
    size: Quantity,
    #[serde(default, rename = "devices")]
    _devices: IgnoredAny,
    #[serde(default, rename = "hostPath")]
    _host_path: IgnoredAny,
    #[serde(default, rename = "volumeClaimTemplate")]
    _volume_claim_template: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FabricSpec {
    #[serde(default = "tcp")]
    provider: String,
    #[serde(default, rename = "vniBlock")]
    _vni_block: IgnoredAny,
}

impl Default for FabricSpec {
    fn default() -> Self {
        Self { provider: tcp(), _vni_block: IgnoredAny }
    }
}

fn tcp() -> String {
    "tcp".to_owned()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PoolSpec {
    cluster_ref: Reference,
    #[serde(default)]
    label: String,
    size: Quantity,
    #[serde(default)]
    ranks: Vec<u32>,
    #[serde(default)]
    object_class: String,
    #[serde(default)]
    redundancy_factor: u32,
    rebuild_delay_seconds: Option<u32>,
    #[serde(default, rename = "deletionPolicy")]
    _deletion_policy: Option<DeletionPolicy>,
    #[serde(default, rename = "tenantRef")]
    _tenant_ref: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
    #[serde(default, rename = "deletionPolicy")]
    _deletion_policy: Option<DeletionPolicy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
            let mut text = String::new();
            // What it is a pipe or a device of says nothing of its size.
            File::open(path)
                .and_then(|file| file.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text))
                .map_err(|error| wrong(error.to_string()))?;
            if text.len() as u64 > MANIFEST_BYTES_MAX {
                return Err(wrong(format!("it has more than {MANIFEST_BYTES_MAX} bytes")));
            }
            manifests.add(&text).map_err(wrong)?;
        }
        manifests.resolve()?;
        Ok(manifests)
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            let object: Object = Object::deserialize(&document).map_err(|error| error.to_string())?;
            let name = format!("{}/{}", object.kind, object.metadata.name);
            self.add_object(object, document).map_err(|reason| format!("{name}: {reason}"))?;
        }
        Ok(())
    }

    fn add_object(&mut self, object: Object, document: Value) -> Result<(), String> {
        let Object { api_version, kind, metadata: Metadata { name } } = object;
        if api_version.split('/').next() != API_VERSION.split('/').next() {
            self.ignored.push(format!("{kind}/{name}"));
            return Ok(());
        }
        if api_version != API_VERSION {
            return Err(format!("apiVersion {api_version} is not known: write {API_VERSION}"));
        }
        if name.is_empty() {
            return Err("metadata.name is missing".to_owned());
        }
        match kind.as_str() {
            "StorageCluster" => self.add_cluster(name, spec(document)?),
            "Pool" => self.add_pool(name, spec(document)?),
            "Container" => self.add_container(name, spec(document)?),
            _ => Err(format!("{API_VERSION} has no such kind, only StorageCluster, Pool and Container")),
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
        self.clusters.push((name.clone(), spec.cluster_ref.name));
        let label = if spec.label.is_empty() { name.clone() } else { spec.label };
        self.labels.insert(name, label.clone());
        if spec.rebuild_delay_seconds.is_some() {
            let (pool, rebuild_delay_seconds) = (label.clone(), spec.rebuild_delay_seconds);
            self.settings.push(PoolSetPropertiesRequest { pool, rebuild_delay_seconds });
        }
        self.pools.push(PoolCreateRequest {
            uuid: String::new(),
            label,
            size_bytes,
            ranks: spec.ranks,
            redundancy_factor: spec.redundancy_factor,
            object_class: spec.object_class,
            tenant: 0,
            places: vec![],
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
        let mode = u32::from_str_radix(mode, 8)
            .ok()
            .filter(|mode| (1..=0o7777).contains(mode))
            .ok_or_else(|| format!("spec.owner.mode: \"{mode}\" is not an octal mode such as \"0775\""))?;
        self.containers.push(ContainerCreateRequest {
            uuid: String::new(),
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

    /// Looks at what refers to what: puts the pools' labels where containers name Pool objects. A name that no manifest defines
    /// is taken as the label of a pool that is there already.
    fn resolve(&mut self) -> Result<(), CliError> {
        let wrong = |reason: String| CliError::Manifest { path: PathBuf::from("(all)"), reason };
        if let Some(cluster) = &self.cluster
            && let Some((pool, named)) = self.clusters.iter().find(|(_, named)| *named != cluster.name)
        {
            return Err(wrong(format!(
                "Pool/{pool}: spec.clusterRef names {named}, the StorageCluster is {}",
                cluster.name
            )));
        }
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
                return Err(wrong(format!(
                    "Container/{}: the label is used twice in pool {}",
                    container.label, container.pool
                )));
            }
        }
        Ok(())
    }
}

fn spec<S: DeserializeOwned>(document: Value) -> Result<S, String> {
    serde_json::from_value(document).map(|ours: Ours<S>| ours.spec).map_err(|error| format!("spec: {error}"))
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
            ("quota: 1Gi", "quota: [1]", "Container/home: spec: [1] is no quantity"),
            ("quota: 1Gi", "quotta: 1Gi", "Container/home: spec: unknown field `quotta`"),
            (
                "targetsPerEngine",
                "targetsPerEngin",
                "StorageCluster/dev: spec: unknown field `targetsPerEngin`",
            ),
            ("size: 10Gi", "size: 0", "Pool/fast: spec.size: \"0\" must be greater than zero"),
            ("size: 10Gi", "size: -1", "Pool/fast: spec.size: \"-1\" is no quantity"),
            ("mode: \"0775\"", "mode: \"0\"", "Container/home: spec.owner.mode"),
            ("clusterRef: {name: dev}", "clusterRef: {name: prod}", "Pool/fast: spec.clusterRef names prod"),
            (
                "clusterRef: {name: dev}",
                "deletionPolicy: Retain",
                "Pool/fast: spec: missing field `clusterRef`",
            ),
            ("  objectClass: SX", "  deletionPolicy: Keep", "Pool/fast: spec: unknown variant `Keep`"),
            ("kind: Pool", "kind: pool", "pool/fast: storage.weir.dev/v1alpha1 has no such kind"),
            (
                "/v1alpha1\nkind: Pool",
                "/v1beta1\nkind: Pool",
                "Pool/fast: apiVersion storage.weir.dev/v1beta1",
            ),
            ("metadata: {name: home}", "metadata: {}", "Container/: metadata.name is missing"),
            (
                "metadata: {name: home}\n",
                "metadata: {name: home}\nsped: {}\n",
                "Container/home: spec: unknown field `sped`",
            ),
        ] {
            let error = parse(&SAMPLE.replace(from, to)).expect_err(to);
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse("kind: Pool").is_err());
        assert!(parse("a: [").is_err());
        assert!(parse(&format!("{SAMPLE}---\n{SAMPLE}")).is_err());
    }

    /// What a struct that takes no unknown fields says that it has.
    fn fields_of<S: DeserializeOwned>() -> Vec<String> {
        let error = serde_json::from_value::<S>(serde_json::json!({"?": 1}))
            .err()
            .expect("an unknown field")
            .to_string();
        let (_, listed) = error.split_once("expected ").unwrap_or_else(|| panic!("{error}"));
        let mut fields: Vec<String> = listed.split('`').skip(1).step_by(2).map(String::from).collect();
        fields.sort();
        fields
    }

    #[test]
    fn the_fields_are_those_of_the_kinds_in_kubernetes() {
        const CLUSTERS: &str =
            include_str!("../../../../charts/weir/files/crds/storage.weir.dev_storageclusters.yaml");
        const POOLS: &str = include_str!("../../../../charts/weir/files/crds/storage.weir.dev_pools.yaml");
        const CONTAINERS: &str =
            include_str!("../../../../charts/weir/files/crds/storage.weir.dev_containers.yaml");
        let kinds = [
            (CLUSTERS, "", fields_of::<ClusterSpec>()),
            (CLUSTERS, "engines", fields_of::<EnginesSpec>()),
            (CLUSTERS, "storage", fields_of::<StorageSpec>()),
            (CLUSTERS, "fabric", fields_of::<FabricSpec>()),
            (POOLS, "", fields_of::<PoolSpec>()),
            (CONTAINERS, "", fields_of::<ContainerSpec>()),
            (CONTAINERS, "owner", fields_of::<Owner>()),
        ];
        for (text, part, fields) in kinds {
            let definition: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
            let schema = &definition[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let mut spec = &schema["properties"]["spec"];
            if !part.is_empty() {
                spec = &spec["properties"][part];
            }
            let properties = spec["properties"].as_object().unwrap_or_else(|| panic!("{part}: {spec}"));
            let mut names: Vec<String> = properties.keys().cloned().collect();
            names.sort();
            assert_eq!(fields, names, "{part}");
        }
    }

    #[test]
    fn a_manifest_without_an_end_is_refused() {
        let error = Manifests::load(&["/dev/zero".into()]).expect_err("too long");
        assert!(error.to_string().contains("more than 3145728 bytes"), "{error}");
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
