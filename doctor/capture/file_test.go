package capture

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// TestFile: a library that Twill has no part in reads what is written.
func TestFile(t *testing.T) {
	var out bytes.Buffer
	f, err := newFile(&out, "lab twill, filter node1,node2")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 123456789)
	var ids []int
	for _, add := range []func() (int, error){
		func() (int, error) { return f.describe("node1/eth1", true) },
		func() (int, error) { return f.describe("node1/flannel0", false) },
		func() (int, error) { return f.dropsOf("node1") },
		func() (int, error) { return f.dropsOf("node1") },
	} {
		id, err := add()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if !slices.Equal(ids, []int{0, 1, 2, 2}) {
		t.Errorf("the interfaces are %v", ids)
	}
	records := []*record{
		{id: 0, kind: unix.PACKET_OUTGOING, time: at, length: 90, data: []byte("seventeen bytes..")},
		{id: 1, kind: unix.PACKET_BROADCAST, time: at.Add(time.Nanosecond), length: 4, data: []byte("four"), comments: []string{"dropped: why", "in f()"}},
		{id: 2, dropped: true, time: at.Add(time.Hour), length: 1, data: []byte("1")},
	}
	for _, r := range records {
		if err := f.write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	readBack(t, &out, records)
}

func readBack(t *testing.T, out *bytes.Buffer, records []*record) {
	t.Helper()
	r, err := pcapgo.NewNgReader(out, pcapgo.NgReaderOptions{WantMixedLinkType: true, ErrorOnMismatchingLinkType: false})
	if err != nil {
		t.Fatal(err)
	}
	if s := r.SectionInfo(); s.Comment != "lab twill, filter node1,node2" || s.Application != "twillctl" || s.OS == "" || s.Hardware == "" {
		t.Errorf("the section is %+v", s)
	}
	want := []struct{ direction, reception uint32 }{{2, 0}, {1, 3 << 2}, {0, 0}}
	for i, w := range records {
		data, info, o, err := r.ReadPacketDataWithOptions()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(data, w.data) || info.Length != w.length || !info.Timestamp.Equal(w.time) || info.InterfaceIndex != w.id || !slices.Equal(o.Comments, w.comments) {
			t.Errorf("packet %d is %q, %+v, %+v: want %+v", i, data, info, o, w)
		}
		if o.Flags == nil != (want[i].direction == 0) || o.Flags != nil && (uint32(o.Flags.Direction) != want[i].direction || uint32(o.Flags.Reception) != want[i].reception) {
			t.Errorf("packet %d has the flags %+v, want %+v", i, o.Flags, want[i])
		}
	}
	for i, want := range []pcapgo.NgInterface{{Name: "node1/eth1", LinkType: layers.LinkTypeEthernet}, {Name: "node1/flannel0", LinkType: layers.LinkTypeRaw},
		{Name: "node1/dropped", LinkType: layers.LinkTypeRaw, Description: "what the kernel dropped, and no device that is captured saw"}} {
		if got, err := r.Interface(i); err != nil || got.Name != want.Name || got.LinkType != want.LinkType || got.Description != want.Description || got.TimestampResolution != 9 {
			t.Errorf("interface %d is %+v, %v: want %+v", i, got, err, want)
		}
	}
}
