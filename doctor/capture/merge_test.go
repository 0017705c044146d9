package capture

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
)

// written returns what a capture of one device writes: so many packets, a second apart.
func written(t *testing.T, device string, from time.Time, packets ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	f, err := newFile(&out, device)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{device + "/idle", device} {
		if _, err := f.describe(name, true); err != nil {
			t.Fatal(err)
		}
	}
	for i, data := range packets {
		r := &record{id: 1, time: from.Add(time.Duration(i) * time.Second), length: len(data), data: []byte(data), comments: []string{"of " + device}}
		if err := f.write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestMerge: a library that Twill has no part in finds each packet of two streams at its own device.
func TestMerge(t *testing.T) {
	at := time.Unix(1700000000, 1)
	var out bytes.Buffer
	a, b := written(t, "node1/eth0", at, "one", "three"), written(t, "node2/eth0", at.Add(time.Second/2), "two", "four", "five")
	if err := Merge(&out, "between a and b", bytes.NewReader(a), bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	for _, comment := range []string{"of node1/eth0", "of node2/eth0"} {
		if !bytes.Contains(out.Bytes(), []byte(comment)) {
			t.Errorf("the comment %q is lost", comment)
		}
	}
	r, err := pcapgo.NewNgReader(&out, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, i.Name+" "+string(data)+" "+info.Timestamp.Sub(at).String())
	}
	slices.Sort(got)
	if want := []string{"node1/eth0 one 0s", "node1/eth0 three 1s", "node2/eth0 five 2.5s", "node2/eth0 four 1.5s", "node2/eth0 two 500ms"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMergeHostile: what is no capture of Twill's is refused in a sentence, and bounded.
func TestMergeHostile(t *testing.T) {
	good := written(t, "node1/eth0", time.Unix(1, 0), "one")
	huge := append(slices.Clone(good), 6, 0, 0, 0, 0xf0, 0xff, 0xff, 0x7f)
	section := append(slices.Clone(good), good[:order.Uint32(good[4:])]...)
	half, longer := good[:len(good)-6], slices.Clone(good)
	order.PutUint32(longer[bytes.Index(longer, []byte("one"))-8:], 4000) // the length that was captured
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"text": {[]byte("error: unknown command \"capture\" for \"twillctl\"\n"), "want 12 to"}, "huge": {huge, "want 12 to"},
		"section": {section, "want a pcapng"}, "longer": {longer, "want a pcapng"}, "half": {half, "half a block"},
	} {
		var out bytes.Buffer
		if err := Merge(&out, "", bytes.NewReader(test.data)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// FuzzMerge: no stream makes the merger fail otherwise than by an error, and what it accepts a library reads.
func FuzzMerge(f *testing.F) {
	var out bytes.Buffer
	file, err := newFile(&out, "about")
	if err != nil {
		f.Fatal(err)
	}
	if _, err := file.describe("node1/eth0", true); err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(file.write(&record{time: time.Unix(1, 0), length: 3, data: []byte("one")}), file.flush()); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add(out.Bytes()[:40])
	f.Fuzz(func(t *testing.T, data []byte) {
		var merged bytes.Buffer
		if Merge(&merged, "", bytes.NewReader(data)) == nil {
			r, err := pcapgo.NewNgReader(&merged, pcapgo.NgReaderOptions{WantMixedLinkType: true})
			for err == nil {
				_, _, err = r.ReadPacketData()
			}
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		}
	})
}
