package transition

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// offer is a way by which a node can be reached now, as it publishes it.
type offer struct {
	Type  string          // of the backend, as in net-conf.json
	Since int64           `json:",omitempty"` // when the node began to offer it, Unix seconds; 0: before there was a transition
	Soon  bool            `json:",omitempty"` // the node has it, and peers get to know what it publishes, but do not use it yet
	Until int64           `json:",omitempty"` // of a way that is about to go, Unix seconds: the node has it so long, and peers do not use it
	Data  json.RawMessage `json:",omitempty"` // what that backend publishes; nothing: the record's own
}

// mostOffers and mostBytes bound what is read of a record.
const mostOffers, mostBytes = 8, 4 << 10

// offersKey is the key of backend-data that has the offers. flannel ignores keys that it does not know, and a record without it
// offers its own backend alone.
const offersKey = "Ways"

// hasOffers reports whether a record may have offers.
func hasOffers(stack subnet.Stack) bool {
	return len(stack.Data) <= mostBytes && bytes.Contains(stack.Data, []byte(offersKey))
}

// offers returns the ways by which one address family of a node can be reached, as its lease says.
func offers(lease subnet.Lease, stack subnet.Stack) []offer {
	var said struct{ Ways []offer }
	if !hasOffers(stack) || json.Unmarshal(stack.Data, &said) != nil || len(said.Ways) == 0 {
		return []offer{{Type: lease.Backend, Data: stack.Data}}
	}
	list := said.Ways[:min(len(said.Ways), mostOffers)]
	for i, o := range list {
		if o.Type == lease.Backend && len(o.Data) == 0 {
			list[i].Data = stack.Data
		}
	}
	return list
}

// withOffers returns what a node publishes for one address family whose record has the backend of the offer with this index. Its
// own data are the record's, as flannel's agents read them.
func withOffers(list []offer, own int) (json.RawMessage, error) {
	if len(list) == 1 {
		return list[0].Data, nil
	}
	fields := map[string]json.RawMessage{}
	if data := list[own].Data; len(data) > 0 {
		if err := json.Unmarshal(data, &fields); err != nil {
			return nil, err
		}
	}
	list = slices.Clone(list)
	list[own].Data = nil
	ways, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	fields[offersKey] = ways
	return json.Marshal(fields)
}
