// Package dial is the Go client of a Weir system's management protocol: it reads the attach file, connects to the
// engines by mutual TLS and offers them as one gRPC connection that tries each engine in turn.
package dial

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

const (
	// maxAttachmentBytes bounds the attach file: 1 MiB is what a Kubernetes Secret may hold.
	maxAttachmentBytes = 1 << 20
	// maxEngines bounds the engine list of an attach file: at 128 bytes an engine this many fill maxAttachmentBytes.
	maxEngines = 8192
)

// Attachment says how to reach a system: the content of the attach file that the operator (or `weir dev`) writes and
// every client reads.
type Attachment struct {
	// System is the system's name.
	System string `json:"system"`
	// Provider is the libfabric provider of the data path: tcp, shm, verbs or cxi.
	Provider string `json:"provider"`
	// Engines lists the engines to try, in order.
	Engines []Engine `json:"engines"`
	// SystemKeyFile names the file with the key that authenticates fabric requests. Management does not read it. A
	// relative name is relative to the folder of the attach file.
	SystemKeyFile string `json:"system_key_file,omitempty"`
	// TLS names the files of the client's management identity.
	TLS TLSFiles `json:"tls"`
}

// Engine is one engine's addresses.
type Engine struct {
	Rank uint32 `json:"rank"`
	// Host is the name or address at which the engine's targets listen; target t at FabricPort + t.
	Host       string `json:"host"`
	FabricPort uint32 `json:"fabric_port"`
	Targets    uint32 `json:"targets"`
	// Management is host:port of the management service.
	Management string `json:"management"`
}

// TLSFiles names PEM files. Relative names are relative to the folder of the attach file.
type TLSFiles struct {
	// CA holds the certificates that engines' certificates must chain to.
	CA string `json:"ca"`
	// Cert and Key hold the client's certificate and private key.
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// identity is an attachment with its TLS files loaded, and a digest by which two of them are told apart.
type identity struct {
	attachment Attachment
	tls        *tls.Config
	digest     [sha256.Size]byte
}

// ReadAttachment reads and checks the attach file at path.
func ReadAttachment(path string) (*Attachment, error) {
	_, attachment, err := readAttachment(path)
	return attachment, err
}

func readAttachment(path string) ([]byte, *Attachment, error) {
	content, err := readBounded(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read attach file: %w", err)
	}
	attachment := &Attachment{}
	if err := json.Unmarshal(content, attachment); err != nil {
		return nil, nil, fmt.Errorf("attach file %s is not valid JSON: %w", path, err)
	}
	if err := attachment.validate(); err != nil {
		return nil, nil, fmt.Errorf("attach file %s: %w", path, err)
	}
	for _, name := range []*string{&attachment.SystemKeyFile, &attachment.TLS.CA, &attachment.TLS.Cert, &attachment.TLS.Key} {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(filepath.Dir(path), *name)
		}
	}
	return content, attachment, nil
}

func (a *Attachment) validate() error {
	switch {
	case len(a.Engines) == 0:
		return errors.New(`"engines" is empty: no engine to ask; wait until the StorageCluster lists one`)
	case len(a.Engines) > maxEngines:
		return fmt.Errorf(`"engines" lists %d engines, more than the %d supported`, len(a.Engines), maxEngines)
	case a.TLS.CA == "" || a.TLS.Cert == "" || a.TLS.Key == "":
		return errors.New(`"tls" must name "ca", "cert" and "key"`)
	}
	for i, engine := range a.Engines {
		if _, _, err := net.SplitHostPort(engine.Management); err != nil {
			return fmt.Errorf(`engines[%d] (rank %d): "management" must be host:port: %w`, i, engine.Rank, err)
		}
	}
	return nil
}

// load reads the attach file and the TLS files that it names.
func load(path string) (*identity, error) {
	content, attachment, err := readAttachment(path)
	if err != nil {
		return nil, err
	}
	digest := sha256.New()
	digest.Write(content)
	var pem [3][]byte
	for i, name := range []string{attachment.TLS.CA, attachment.TLS.Cert, attachment.TLS.Key} {
		if pem[i], err = readBounded(name); err != nil {
			return nil, fmt.Errorf("attach file %s: read TLS file: %w", path, err)
		}
		digest.Write(pem[i])
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem[0]) {
		return nil, fmt.Errorf("attach file %s: no PEM certificate in %s", path, attachment.TLS.CA)
	}
	certificate, err := tls.X509KeyPair(pem[1], pem[2])
	if err != nil {
		return nil, fmt.Errorf("attach file %s: certificate %s with key %s: %w", path, attachment.TLS.Cert, attachment.TLS.Key, err)
	}
	loaded := &identity{
		attachment: *attachment,
		tls: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			RootCAs:      roots,
			Certificates: []tls.Certificate{certificate},
		},
	}
	digest.Sum(loaded.digest[:0])
	return loaded, nil
}

// readBounded reads a file that must not exceed maxAttachmentBytes.
func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxAttachmentBytes {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d supported", path, info.Size(), maxAttachmentBytes)
	}
	return os.ReadFile(path)
}
