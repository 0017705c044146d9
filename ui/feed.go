package ui

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/target"
)

// Update is a line of the stream of updates: what changed since the line before.
type Update struct {
	Version int             `json:"version"`
	At      time.Time       `json:"at"`
	Nodes   []doctor.Status `json:"nodes"` // that are new or changed
	Gone    []string        `json:"gone"`  // nodes
	Silent  []string        `json:"silent"`
	Places  *target.Places  `json:"places,omitempty"` // if they changed
	Error   string          `json:"error,omitempty"`  // why the source could not be asked
}

// A lab is asked often: looking at it costs little. So is nothing while nobody looks.
const (
	askEvery    = time.Second
	placesEvery = 5 * time.Second
	sign        = 10 * time.Second // of life, while nothing changes
)

// feed asks a source again and again for as long as somebody follows, and tells the changes.
type feed struct {
	source target.Source
	every  time.Duration

	mu      sync.Mutex
	nodes   map[string]seen
	places  target.Places
	placed  int // the version at which places changed
	silent  []string
	error   string
	version int
	at      time.Time
	changed chan struct{} // closed at the next change
	readers int
	stop    context.CancelFunc
}

// seen is a node's status, and the version at which it became so or went.
type seen struct {
	version int
	gone    bool
	status  doctor.Status
	encoded string
	noted   []doctor.Event // findings that came and went
}

func newFeed(s target.Source, every time.Duration) *feed {
	return &feed{source: s, every: every, nodes: map[string]seen{}, changed: make(chan struct{})}
}

// follow calls send with all there is, and then with each change, until that fails or ctx ends. Without anything to say
// it sends nil now and then.
func (f *feed) follow(ctx context.Context, send func(*Update) error) error {
	f.join()
	defer f.leave()
	for known := 0; ; {
		u, changed := f.since(known)
		switch {
		case u.Version > known:
			if err := send(&u); err != nil {
				return err
			}
			known = u.Version
		default:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			case <-time.After(sign):
				if err := send(nil); err != nil {
					return err
				}
			}
		}
	}
}

func (f *feed) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers++; f.readers == 1 {
		var ctx context.Context
		ctx, f.stop = context.WithCancel(context.Background())
		go f.run(ctx)
	}
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		f.stop()
	}
}

// run asks until ctx ends. A source that takes long is asked less often: it rests for as long as it worked.
func (f *feed) run(ctx context.Context) {
	var places time.Time
	for {
		began := time.Now()
		status, err := f.source.Status(ctx)
		var p *target.Places
		if err == nil && began.Sub(places) >= placesEvery {
			var now target.Places
			if now, err = f.source.Places(ctx); err == nil {
				p, places = &now, began
			}
		}
		if ctx.Err() != nil {
			return
		}
		f.take(status, p, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(f.every, time.Since(began))):
		}
	}
}

// take notes what a source answered.
func (f *feed) take(r doctor.StatusReport, p *target.Places, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, different := f.version+1, false
	text := ""
	if err != nil {
		text = err.Error()
	} else {
		different = f.takeNodes(r.Nodes, next)
		if !slices.Equal(f.silent, r.Silent) {
			f.silent, different = r.Silent, true
		}
		if p != nil && (f.placed == 0 || !reflect.DeepEqual(f.places, *p)) {
			f.places, f.placed, different = *p, next, true
		}
	}
	if text != f.error {
		f.error, different = text, true
	}
	if different || f.version == 0 {
		f.version, f.at = next, time.Now()
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

func (f *feed) takeNodes(nodes []doctor.Status, next int) (different bool) {
	there := map[string]bool{}
	for _, n := range nodes {
		there[n.Node] = true
		encoded, err := json.Marshal(n)
		if old, ok := f.nodes[n.Node]; err == nil && ok && !old.gone && old.encoded == string(encoded) {
			continue
		}
		noted := note(f.nodes[n.Node], n, time.Now().UTC())
		f.nodes[n.Node], different = seen{version: next, status: n, encoded: string(encoded), noted: noted}, true
	}
	for name, n := range f.nodes {
		if !there[name] && !n.gone {
			n.version, n.gone, n.encoded = next, true, ""
			f.nodes[name], different = n, true
		}
	}
	return different
}

// maxNoted is how many findings of a node are remembered.
const maxNoted = 200

// note returns what is remembered of a node's findings: agents do not look for them, so it begins with the first look.
func note(old seen, now doctor.Status, at time.Time) []doctor.Event {
	noted := old.noted
	for _, id := range now.Findings {
		if !slices.Contains(old.status.Findings, id) {
			noted = append(noted, doctor.Event{At: at, Kind: "finding", Text: id + " was found"})
		}
	}
	for _, id := range old.status.Findings {
		if !slices.Contains(now.Findings, id) {
			noted = append(noted, doctor.Event{At: at, Kind: "finding", Text: id + " is gone"})
		}
	}
	return slices.Clone(noted[max(0, len(noted)-maxNoted):])
}

// remember adds the findings that this feed saw to what agents remember.
func (f *feed) remember(r *doctor.HistoryReport, begin time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, n := range r.Nodes {
		for _, e := range f.nodes[n.Node].noted {
			if e.At.After(begin) {
				r.Nodes[i].Events = append(r.Nodes[i].Events, e)
			}
		}
		slices.SortStableFunc(r.Nodes[i].Events, func(a, b doctor.Event) int { return a.At.Compare(b.At) })
	}
}

// since returns what changed after a version, and what is closed at the next change.
func (f *feed) since(version int) (Update, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := Update{Version: f.version, At: f.at, Nodes: []doctor.Status{}, Gone: []string{}, Silent: list(f.silent), Error: f.error}
	for name, n := range f.nodes {
		switch {
		case n.version <= version:
		case n.gone:
			u.Gone = append(u.Gone, name)
		default:
			u.Nodes = append(u.Nodes, n.status)
		}
	}
	sortNodes(u.Nodes)
	slices.Sort(u.Gone)
	if f.placed > version {
		places := f.places
		u.Places = &places
	}
	return u, f.changed
}

// list returns a list that JSON shows as one, also when it is empty.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// sortNodes sorts by name, numbers in it by value.
func sortNodes(nodes []doctor.Status) {
	slices.SortFunc(nodes, func(a, b doctor.Status) int {
		if len(a.Node) != len(b.Node) {
			return len(a.Node) - len(b.Node)
		}
		return strings.Compare(a.Node, b.Node)
	})
}
