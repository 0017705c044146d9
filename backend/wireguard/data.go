package wireguard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// data is flannel's backend-data annotation: {"PublicKey":"…","Port":51820}; a Port that is missing is this node's.
type data struct {
	PublicKey string
	Port      int `json:",omitempty"`
}

// peer is a peer's part of one family with what its data say.
type peer struct {
	backend.Peer
	key  wgtypes.Key
	port int
}

// owner is a public key of one device: there it has one address, and what may come from it is its own.
type owner struct {
	dev string
	key wgtypes.Key
}

// Claims implements backend.Claimer: a public key.
func (b *Backend) Claims(stack subnet.Stack) []string {
	key, _, err := parseData(stack.Data)
	if err != nil {
		return nil
	}
	return []string{owner{b.deviceOf(stack.Family()), key}.String()}
}

func (o owner) String() string { return o.dev + " " + o.key.String() }

// unproven: whose a key is, only packets show.
func unproven(owner, string) bool { return false }

// peers are those of the snapshot that can be used, and why the others cannot.
func (b *Backend) peers(node backend.Node, snap subnet.Snapshot) ([]peer, []subnet.Skip) {
	all, skips := backend.Peers(b.networks, node, snap)
	claims := backend.NewClaims(snap, unproven)
	for _, s := range snap.Local.Stacks {
		if key, _, err := parseData(s.Data); err == nil {
			claims.Own(owner{b.deviceOf(s.Family()), key}, snap.Local.Node)
		}
	}
	readable := make([]peer, 0, len(all))
	for _, p := range all {
		key, port, err := parseData(p.Data)
		if err != nil {
			skips = append(skips, subnet.Skip{Node: p.Node, Code: subnet.BackendData, Detail: err.Error()})
			continue
		}
		one := peer{p, key, cmp.Or(port, b.port(p.Family()))}
		claims.Enter(one.owner(b), p.Node, one.endpoint())
		readable = append(readable, one)
	}
	usable, allowed := make([]peer, 0, len(readable)), map[owner]int{}
	for _, p := range readable {
		holder, denied := claims.Holder(p.owner(b), p.Node, p.endpoint())
		if denied || allowed[p.owner(b)] == len(netstate.Allowed{}) {
			skips = append(skips, subnet.Skip{Node: p.Node, Code: subnet.DuplicateKey,
				Detail: fmt.Sprintf("its public key %s is %s's already", p.key, holder)})
			continue
		}
		allowed[p.owner(b)]++
		usable = append(usable, p)
	}
	return usable, skips
}

func (p peer) owner(b *Backend) owner { return owner{b.deviceOf(p.Family()), p.key} }

func (p peer) endpoint() netip.AddrPort { return netip.AddrPortFrom(p.Underlay, uint16(p.port)) }

// parseData reads a peer's backend-data.
func parseData(raw json.RawMessage) (key wgtypes.Key, port int, err error) {
	var d data
	if err := json.Unmarshal(raw, &d); err != nil {
		return key, 0, fmt.Errorf("its backend-data %.80q is not an object with PublicKey", raw)
	}
	key, err = wgtypes.ParseKey(d.PublicKey)
	if err != nil || key == (wgtypes.Key{}) {
		return key, 0, fmt.Errorf("its backend-data has the PublicKey %.80q, want 32 bytes in base64", d.PublicKey)
	}
	if d.Port < 0 || d.Port > 65535 {
		return key, 0, fmt.Errorf("its backend-data has the Port %d, want 1 to 65535", d.Port)
	}
	return key, d.Port, nil
}

// Publish is the public key and the port.
func (b *Backend) Publish(_ backend.Node, _ subnet.Lease, f netstate.Family) (json.RawMessage, error) {
	key := b.private()
	if key == (wgtypes.Key{}) {
		return nil, errors.New("the private key has not been read yet")
	}
	return json.Marshal(data{key.PublicKey().String(), b.port(f)})
}

func (b *Backend) private() wgtypes.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.key
}

// keyVariable is the environment variable with which flannel names the key's file; else it is wgkey beside subnet.env.
const keyVariable = "WIREGUARD_KEY_FILE"

// Prepare reads the private key, and makes one if there is none.
func (b *Backend) Prepare(_ context.Context, env backend.Env) error {
	path := os.Getenv(keyVariable)
	if path == "" {
		path = filepath.Join(env.Dir, "wgkey")
	}
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(path)
	}
	if err != nil {
		return err
	}
	env.Log.Info("WireGuard's private key is read", "publickey", key.PublicKey().String(), "file", path)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.key = key
	return nil
}

// readKey never tells what it read.
func readKey(path string) (wgtypes.Key, error) {
	text, err := smallfile.Read(path, smallfile.MB)
	if err != nil {
		return wgtypes.Key{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		return key, fmt.Errorf("the private key in %s is none: want 32 bytes in base64, or no such file", path)
	}
	return key, nil
}

// makeKey writes a new key to a file that only root reads, whole or not at all.
func makeKey(path string) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return key, err
	}
	return key, atomicfile.Write(path, []byte(key.String()), 0o600)
}
