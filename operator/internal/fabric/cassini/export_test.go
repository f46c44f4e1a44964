package cassini

import "github.com/ebitengine/purego"

// Double is what the double of the library says beside what the library does.
type Double struct {
	f       *Fabric
	admits  func(of *device, number, network uint32) int32
	classes func(of *device, number uint32) int32
	// Handles is how many lists and NICs have not been given back.
	Handles func() int32
}

// NewDouble reaches the double that a fabric has loaded from a file.
func NewDouble(f *Fabric, file string) (*Double, error) {
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	d := &Double{f: f}
	purego.RegisterLibFunc(&d.admits, handle, "double_admits")
	purego.RegisterLibFunc(&d.classes, handle, "double_classes")
	purego.RegisterLibFunc(&d.Handles, handle, "double_handles")
	return d, nil
}

// Admits tells whether a network namespace may use a service.
func (d *Double) Admits(device string, number, network uint32) (bool, error) {
	nic, err := d.f.opened(device)
	return err == nil && d.admits(nic, number, network) == 1, err
}

// Classes are the traffic classes of a service, one bit each.
func (d *Double) Classes(device string, number uint32) (int32, error) {
	nic, err := d.f.opened(device)
	if err != nil {
		return 0, err
	}
	return d.classes(nic, number), nil
}
