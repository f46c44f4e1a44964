package v1alpha1

// Condition types. Ready is the roll-up of a kind; every condition carries the generation it was computed from.
const (
	// ConditionReady is True while the object can be used as its spec asks.
	ConditionReady = "Ready"
	// ConditionProgressing is True while the operator moves the object towards its spec.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True while something that worked before does not: data may be unavailable, none is lost.
	ConditionDegraded = "Degraded"
	// ConditionRebuilding is True while copies of a Pool's data are being made: the message says how far they are.
	ConditionRebuilding = "Rebuilding"
	// ConditionAtRisk is True while the next loss would make data of a Pool with redundancy unavailable, or stop its service.
	ConditionAtRisk = "AtRisk"
	// ConditionDrainable is True while a node with an engine of a StorageCluster may be drained: the budget of its pods admits it.
	ConditionDrainable = "Drainable"
	// ConditionDeletionBlocked is True when the object is being deleted and something keeps it: the message lists what.
	ConditionDeletionBlocked = "DeletionBlocked"
	// ConditionHealthy is True while nothing is known to be wrong with a NodeDevice itself.
	ConditionHealthy = "Healthy"
	// ConditionVNIAllocated is True while a Tenant has as many VNIs as its spec asks for.
	ConditionVNIAllocated = "VNIAllocated"
	// ConditionEnginesServe is True while every engine serves a Tenant's number, as the engines themselves say.
	ConditionEnginesServe = "EnginesServe"
	// ConditionQuotaEnforced is True while the engines of every StorageCluster go by a Tenant's quota.
	ConditionQuotaEnforced = "QuotaEnforced"
	// ConditionFabricEnforced is True while every node with an agent has admitted the pods of a Tenant to its VNIs, and no others.
	ConditionFabricEnforced = "FabricEnforced"
	// ConditionIsolated is True while every attempt to get from a Tenant's VNIs into others was refused, as the nodes tried.
	ConditionIsolated = "Isolated"
	// ConditionCredentialsWritten is True while each namespace of a Tenant has the Secrets that its clients attach with.
	ConditionCredentialsWritten = "CredentialsWritten"
)

// Reasons that several kinds share.
const (
	// ReasonDeleting says that the object is on its way out.
	ReasonDeleting = "Deleting"
	// ReasonNotDeleting says that nobody asked for the deletion of the object.
	ReasonNotDeleting = "NotDeleting"
	// ReasonNoDependents says that nothing stands in the way of the deletion.
	ReasonNoDependents = "NoDependents"
	// ReasonDependentsExist says that other objects still use this one.
	ReasonDependentsExist = "DependentsExist"
	// ReasonEngineUnreachable says that no engine of the system answered.
	ReasonEngineUnreachable = "EngineUnreachable"
	// ReasonRejected says that the engines refused the request; the message is theirs.
	ReasonRejected = "Rejected"
	// ReasonReconcileFailed says that the operator could not do its work; the message says why, and it tries again.
	ReasonReconcileFailed = "ReconcileFailed"
	// ReasonAvailable says that the object exists in the engines and can be used.
	ReasonAvailable = "Available"
	// ReasonLabelInUse says that an older object already stands for the same label.
	ReasonLabelInUse = "LabelInUse"
	// ReasonUnknownObjectClass says that the object class is not one that this version knows.
	ReasonUnknownObjectClass = "UnknownObjectClass"
	// ReasonWeakObjectClass says that objects of the class survive fewer losses than the pool's redundancyFactor asks for.
	ReasonWeakObjectClass = "WeakObjectClass"
	// ReasonTooFewEngines says that the object wants more copies, or more ranks, than there are engines.
	ReasonTooFewEngines = "TooFewEngines"
)

// Reasons of StorageCluster conditions.
const (
	// ReasonAllEnginesReady says that every engine of the spec is up.
	ReasonAllEnginesReady = "AllEnginesReady"
	// ReasonEnginesNotReady says that an engine is not up; the message says which and why.
	ReasonEnginesNotReady = "EnginesNotReady"
	// ReasonTooFewNodes says that the spec wants more nodes than can take an engine.
	ReasonTooFewNodes = "TooFewNodes"
	// ReasonTooFewDrives says that the spec wants more drives than may be taken; the message says which are missing and why.
	ReasonTooFewDrives = "TooFewDrives"
	// ReasonDriveAssigned says that a target got a drive.
	ReasonDriveAssigned = "DriveAssigned"
	// ReasonDriveReplaced says that another drive takes the place of one that failed.
	ReasonDriveReplaced = "DriveReplaced"
	// ReasonDriveFailed says that a drive of an engine has failed.
	ReasonDriveFailed = "DriveFailed"
	// ReasonStarting says that engines are being created.
	ReasonStarting = "Starting"
	// ReasonRollingOut says that engines are being restarted one at a time with a new configuration.
	ReasonRollingOut = "RollingOut"
	// ReasonNothingMissing says that all data of pools with redundancy has all its copies.
	ReasonNothingMissing = "NothingMissing"
	// ReasonNoneToSpare says that pools with redundancy can't do without another engine; the message says why.
	ReasonNoneToSpare = "NoneToSpare"
	// ReasonSettled says that the cluster is what its spec asks for.
	ReasonSettled = "Settled"
	// ReasonStorageTooSmall says that storage.size leaves too little for each target.
	ReasonStorageTooSmall = "StorageTooSmall"
	// ReasonClientSecretTaken says that another StorageCluster of the same name owns the client Secret.
	ReasonClientSecretTaken = "ClientSecretTaken"
	// ReasonNameTaken says that an object which the cluster needs is there and somebody else's; the message says whose.
	ReasonNameTaken = "NameTaken"
	// ReasonCollectingGarbage says that Kubernetes has yet to delete what an earlier StorageCluster of the name owned.
	ReasonCollectingGarbage = "CollectingGarbage"
	// ReasonErasingData says that the directories of the engines are being erased.
	ReasonErasingData = "ErasingData"
	// ReasonSettlingClaims says that Kubernetes has not noted yet whether the claims of the engines stay.
	ReasonSettlingClaims = "SettlingClaims"
	// ReasonErasureFailed says that the directory of an engine could not be erased.
	ReasonErasureFailed = "ErasureFailed"
)

// Reasons of Pool conditions.
const (
	// ReasonClusterNotFound says that no StorageCluster has the name in clusterRef.
	ReasonClusterNotFound = "ClusterNotFound"
	// ReasonClusterNotReady says that the StorageCluster has no engine that could be asked yet.
	ReasonClusterNotReady = "ClusterNotReady"
	// ReasonUnknownRank says that spec.ranks names a rank that the cluster does not have.
	ReasonUnknownRank = "UnknownRank"
	// ReasonTooFewFailureDomains says that engines are in fewer failure domains than the pool keeps copies.
	ReasonTooFewFailureDomains = "TooFewFailureDomains"
	// ReasonInsufficientCapacity says that the engines have less free space than the pool asks.
	ReasonInsufficientCapacity = "InsufficientCapacity"
	// ReasonPoolTooSmall says that the pool's share of a target would be less than a target can manage.
	ReasonPoolTooSmall = "PoolTooSmall"
	// ReasonRanksUnreachable says that some engines of the pool do not answer.
	ReasonRanksUnreachable = "RanksUnreachable"
	// ReasonCopiesMissing says that engines or devices of the pool are away, not more than its redundancyFactor.
	ReasonCopiesMissing = "CopiesMissing"
	// ReasonCopiesBeingMade says that copies that were missing are being made.
	ReasonCopiesBeingMade = "CopiesBeingMade"
	// ReasonAllCopiesThere says that all data has all its copies.
	ReasonAllCopiesThere = "AllCopiesThere"
	// ReasonNothingMoves says that no copies are being made.
	ReasonNothingMoves = "NothingMoves"
	// ReasonBeyondRedundancy says that more is away than the pool's redundancyFactor allows.
	ReasonBeyondRedundancy = "BeyondRedundancy"
	// ReasonNotGivenUp says that the engines refuse to give up a rank that the StorageCluster calls lost; the message says why.
	ReasonNotGivenUp = "NotGivenUp"
	// ReasonEnginesJoin says that engines have joined the pool and get their share of its data; the message says which, and how far it is.
	ReasonEnginesJoin = "EnginesJoin"
	// ReasonNotJoined says that engines by which the StorageCluster has grown can't join the pool yet; the message says why.
	ReasonNotJoined = "NotJoined"
	// ReasonNoServiceToSpare says that all copies are there, and the pool's service can't do without another engine.
	ReasonNoServiceToSpare = "NoServiceToSpare"
	// ReasonLossSurvived says that another failure domain may be lost.
	ReasonLossSurvived = "LossSurvived"
	// ReasonTargetsOutOfService says that devices of the pool are faulty.
	ReasonTargetsOutOfService = "TargetsOutOfService"
	// ReasonAllRanksReachable says that every engine of the pool answers.
	ReasonAllRanksReachable = "AllRanksReachable"
	// ReasonTenantNotFound says that no Tenant has the name in tenantRef.
	ReasonTenantNotFound = "TenantNotFound"
	// ReasonTenantNotReady says that the pool's Tenant has no number yet, or is being deleted.
	ReasonTenantNotReady = "TenantNotReady"
	// ReasonTenantMismatch says that the pool was made for another tenant than tenantRef names.
	ReasonTenantMismatch = "TenantMismatch"
	// ReasonContainersExist says that the pool holds containers that would be lost.
	ReasonContainersExist = "ContainersExist"
)

// Reasons of Container conditions.
const (
	// ReasonPoolNotFound says that no Pool has the name in poolRef.
	ReasonPoolNotFound = "PoolNotFound"
	// ReasonPoolNotReady says that the Pool does not exist in the engines yet.
	ReasonPoolNotReady = "PoolNotReady"
	// ReasonQuotaTooLarge says that the quota is larger than the pool.
	ReasonQuotaTooLarge = "QuotaTooLarge"
	// ReasonOpenHandles says that clients still have the container open.
	ReasonOpenHandles = "OpenHandles"
	// ReasonPoolDegraded says that part of the container's data is unavailable because its pool is degraded.
	ReasonPoolDegraded = "PoolDegraded"
)

// Reasons of Tenant, FabricDomain and VNIAllocation conditions.
const (
	// ReasonAllocated says that the VNIs are the tenant's.
	ReasonAllocated = "Allocated"
	// ReasonNoFabricDomain says that there is no FabricDomain to take VNIs from, or several and none is named.
	ReasonNoFabricDomain = "NoFabricDomain"
	// ReasonNoVNIWanted says that the tenant's spec asks for no VNI.
	ReasonNoVNIWanted = "NoVNIWanted"
	// ReasonSecretsWritten says that every namespace of the tenant has its Secrets.
	ReasonSecretsWritten = "SecretsWritten"
	// ReasonNoNamespace says that no namespace has the labels that the tenant selects.
	ReasonNoNamespace = "NoNamespace"
	// ReasonSelectorMalformed says that the tenant's selector can't be evaluated; the message says why.
	ReasonSelectorMalformed = "SelectorMalformed"
	// ReasonNoCluster says that there is no StorageCluster whose clients the tenant's could be.
	ReasonNoCluster = "NoCluster"
	// ReasonNamespaceTaken says that an older Tenant selects a namespace, too.
	ReasonNamespaceTaken = "NamespaceTaken"
	// ReasonTooManyNamespaces says that the tenant selects more namespaces than it can have.
	ReasonTooManyNamespaces = "TooManyNamespaces"
	// ReasonSecretsRefused says that the operator may not write Secrets into a namespace, or that one of the name is there.
	ReasonSecretsRefused = "SecretsRefused"
	// ReasonAllEnginesServe says that every engine of every StorageCluster serves the tenant.
	ReasonAllEnginesServe = "AllEnginesServe"
	// ReasonAccessRevoked says that engines turn the tenant's clients away.
	ReasonAccessRevoked = "AccessRevoked"
	// ReasonEnginesSilent says that engines did not say whether they serve the tenant.
	ReasonEnginesSilent = "EnginesSilent"
	// ReasonVNIOutsideBlock says that engines don't serve a VNI of the tenant.
	ReasonVNIOutsideBlock = "VNIOutsideBlock"
	// ReasonQuotaSet says that engines go by the tenant's quota, and that it holds no more than that.
	ReasonQuotaSet = "QuotaSet"
	// ReasonQuotaExceeded says that the tenant holds more than its quota since that was lowered, and that engines store nothing more.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonNoQuota says that the tenant has no quota.
	ReasonNoQuota = "NoQuota"
	// ReasonQuotaRefused says that engines refuse the tenant's quota; the message is theirs.
	ReasonQuotaRefused = "QuotaRefused"
	// ReasonPodsAdmitted says that the agents of nodes have admitted every pod of the tenant.
	ReasonPodsAdmitted = "PodsAdmitted"
	// ReasonPodsWait says that pods are not admitted, or not let go of; the message says why.
	ReasonPodsWait = "PodsWait"
	// ReasonNoAgent says that no node's agent has admitted a pod of the tenant.
	ReasonNoAgent = "NoAgent"
	// ReasonAttemptsRefused says that the network refused every attempt to leave the tenant's VNIs, and engines what was tried with keys.
	ReasonAttemptsRefused = "AttemptsRefused"
	// ReasonAttemptSucceeded says that an attempt to leave the tenant's VNIs, or to reach what is another tenant's, got through; the message says which.
	ReasonAttemptSucceeded = "AttemptSucceeded"
	// ReasonNotProven says that nodes have no proof, or an old one; the message names them.
	ReasonNotProven = "NotProven"
	// ReasonTenantReady says that the tenant has all that its spec asks for.
	ReasonTenantReady = "TenantReady"
	// ReasonRangeExhausted says that the FabricDomain has no number left to give.
	ReasonRangeExhausted = "RangeExhausted"
	// ReasonNumbersFree says that the FabricDomain has numbers to give.
	ReasonNumbersFree = "NumbersFree"
	// ReasonNodesHoldVNI says that nodes have not confirmed that they released a number.
	ReasonNodesHoldVNI = "NodesHoldVNI"
	// ReasonQuarantined says that every node has released a number, and that it rests before it can be given away again.
	ReasonQuarantined = "Quarantined"
)

// Reasons of NodeDevice conditions.
const (
	// ReasonEligible says that an engine may have the drive.
	ReasonEligible = "Eligible"
	// ReasonAssigned says that the drive is an engine's, and fit for it.
	ReasonAssigned = "Assigned"
	// ReasonNothingFound says that nothing is known to be wrong with the drive.
	ReasonNothingFound = "NothingFound"
	// ReasonNoIdentity says that the drive has no name of its own that stays.
	ReasonNoIdentity = "NoIdentity"
	// ReasonSeenElsewhere says that another node has a drive of the same identity.
	ReasonSeenElsewhere = "SeenElsewhere"
	// ReasonMounted says that the drive, or a partition of it, is mounted.
	ReasonMounted = "Mounted"
	// ReasonPartitioned says that the drive has partitions.
	ReasonPartitioned = "Partitioned"
	// ReasonInUse says that LVM, RAID, encryption or a program has the drive.
	ReasonInUse = "InUse"
	// ReasonForeignSignature says that the drive has content that is no engine's.
	ReasonForeignSignature = "ForeignSignature"
	// ReasonHoldsStore says that the drive has data of an engine that it isn't assigned to.
	ReasonHoldsStore = "HoldsStore"
	// ReasonReadOnly says that the drive takes no writes.
	ReasonReadOnly = "ReadOnly"
	// ReasonTooSmall says that the drive has less space than a target needs.
	ReasonTooSmall = "TooSmall"
	// ReasonAbsent says that the drive's node does not have it any more.
	ReasonAbsent = "Absent"
	// ReasonUnreadable says that the drive could not be read.
	ReasonUnreadable = "Unreadable"
	// ReasonControllerDown says that the drive's controller does not work.
	ReasonControllerDown = "ControllerDown"
	// ReasonHealthWarning says that the drive's health log has a critical warning.
	ReasonHealthWarning = "HealthWarning"
)

// Names that the operator puts on objects.
const (
	// Finalizer keeps an object until the operator has let go of what it stands for.
	Finalizer = "storage.weir.dev/engines"
	// LabelCluster names the StorageCluster that an object belongs to.
	LabelCluster = "storage.weir.dev/cluster"
	// LabelRank is the rank of the engine that an object belongs to.
	LabelRank = "storage.weir.dev/rank"
	// LabelNode names the node that a NodeDevice was seen on last.
	LabelNode = "storage.weir.dev/node"
	// LabelAttaches marks the pods that mount client Secrets, in the operator's namespace.
	LabelAttaches = "storage.weir.dev/attaches"
	// AnnotationCluster is "namespace/name" of the StorageCluster that a Secret in another namespace was copied from.
	AnnotationCluster = "storage.weir.dev/cluster"
	// LabelTenant is the UID of the Tenant whose Secret an object is.
	LabelTenant = "storage.weir.dev/tenant-uid"
	// AnnotationTenant names the Tenant whose Secret an object is.
	AnnotationTenant = "storage.weir.dev/tenant"
	// AnnotationStopInUse, when "true", lets a StorageCluster be deleted while volumes of it are mounted.
	AnnotationStopInUse = "storage.weir.dev/stop-in-use"
)
