package fabric

// NewKeeperWithSteps is NewKeeper that tells of each step once it is done.
var NewKeeperWithSteps = newKeeper
