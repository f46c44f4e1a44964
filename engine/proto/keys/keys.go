// Package keys derives the keys of tenants from the system key, as engines do.
package keys

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"lukechampine.com/blake3"
)

// Bytes is the length of a key.
const Bytes = 32

// purpose keeps the keys of tenants apart from whatever else is derived from the system key.
const purpose = "tenant"

// Parse reads the text of a key file: base64 (RFC 4648 §4) of Bytes bytes.
func Parse(text []byte) ([]byte, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(raw) != Bytes {
		return nil, fmt.Errorf("a key is base64 of %d bytes", Bytes)
	}
	return raw, nil
}

// Format writes the text of a key file.
func Format(key []byte) []byte {
	return []byte(base64.StdEncoding.EncodeToString(key))
}

// Tenant is the key that the clients of a tenant share with the engines: BLAKE3 of purpose and number, little-endian, under the
// system key. As SystemKey::tenant of the engines.
func Tenant(system []byte, number uint64) []byte {
	hasher := blake3.New(Bytes, system)
	message := binary.LittleEndian.AppendUint64([]byte(purpose), number)
	// A hash takes every byte: its Write returns no error.
	_, _ = hasher.Write(message)
	return hasher.Sum(nil)
}
