package filter

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// perMessage is how many elements a message has: an attribute has 64 kB at most, and an element that is an IPv6 address
// and the longest name of a chain 304 bytes.
const perMessage = 200

// changeElements deletes elements and then adds some, so that one whose verdict changes is both.
func (tx *transaction) changeElements() error {
	deletes, adds := map[string][]nftables.SetElement{}, map[string][]nftables.SetElement{}
	for _, c := range tx.plan {
		if was, ok := c.Was.(netstate.Element); ok && !tx.gone[was.Set] {
			was.Extra = ""
			if was.Verdict != "" {
				was.Verdict = "return" // the key is enough
			}
			if err := tx.encode(deletes, was); err != nil {
				return err
			}
		}
		if want, ok := c.Want.(netstate.Element); ok {
			if err := tx.encode(adds, want); err != nil {
				return err
			}
		}
	}
	if err := tx.eachMessage(deletes, tx.SetDeleteElements); err != nil {
		return err
	}
	return tx.eachMessage(adds, tx.SetAddElements)
}

func (tx *transaction) encode(to map[string][]nftables.SetElement, e netstate.Element) error {
	kind, err := tx.typeOf(e.Set)
	if err != nil {
		return err
	}
	elements, err := encodeElement(kind, e)
	to[e.Set] = append(to[e.Set], elements...)
	return err
}

// typeOf returns the type of a set of the plan, or of the table.
func (tx *transaction) typeOf(set string) (netstate.SetType, error) {
	kind, ok := tx.types[set]
	if ok {
		return kind, nil
	}
	for _, m := range tx.reader.Call(unix.NFT_MSG_GETSET, 0, tx.family, netstate.FilterTable, set) {
		kind, ok = parseSet(tx.reader.Attributes(m.Data[4:])).typeOf(tx.family)
	}
	if tx.reader.Err != nil {
		return "", tx.reader.Err
	}
	if !ok {
		return "", fmt.Errorf("set %s: there is none, or it is not ours", set)
	}
	tx.types[set] = kind
	return kind, nil
}

func (tx *transaction) eachMessage(
	sets map[string][]nftables.SetElement, add func(*nftables.Set, []nftables.SetElement) error,
) error {
	for name, elements := range sets {
		set, err := setOf(tx.family, name, tx.types[name])
		if err != nil {
			return err
		}
		for some := range slices.Chunk(elements, perMessage) {
			if err := add(set, some); err != nil {
				return err
			}
		}
	}
	return nil
}
