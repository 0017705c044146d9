package capture

import (
	"fmt"
	"io"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/packet"
)

// file is a pcapng file (draft-ietf-opsawg-pcapng) that is being written.
type file struct {
	w       io.Writer
	section pcapgo.NgSectionInfo
	ng      *pcapgo.NgWriter // nil before the first interface, which it wants
	drops   map[string]int   // interfaces of what was only seen when it was dropped, by the host
}

func newFile(w io.Writer, name string, filter []string) (*file, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	text := func(b []byte) string { return unix.ByteSliceToString(b) }
	f := &file{w: w, drops: map[string]int{}, section: pcapgo.NgSectionInfo{
		Hardware:    text(kernel.Machine[:]),
		OS:          text(kernel.Sysname[:]) + " " + text(kernel.Release[:]),
		Application: "twillctl lab capture",
		Comment:     "lab " + name,
	}}
	if len(filter) > 0 {
		f.section.Comment += ", filter " + strings.Join(filter, ",")
	}
	return f, nil
}

// describe adds an interface and returns its number. Times are nanoseconds.
func (f *file) describe(name string, ethernet bool) (int, error) {
	link := layers.LinkTypeRaw
	if ethernet {
		link = layers.LinkTypeEthernet
	}
	return f.add(pcapgo.NgInterface{Name: name, LinkType: link, SnapLength: packet.MaxFrame})
}

// dropsOf returns the interface for packets that a host dropped, and that none of its captured devices saw.
func (f *file) dropsOf(host string) (int, error) {
	if id, ok := f.drops[host]; ok {
		return id, nil
	}
	id, err := f.add(pcapgo.NgInterface{Name: host + "/dropped", LinkType: layers.LinkTypeRaw, SnapLength: packet.MaxFrame,
		Description: "what the kernel dropped, and no device that is captured saw"})
	f.drops[host] = id
	return id, err
}

func (f *file) add(i pcapgo.NgInterface) (id int, err error) {
	if f.ng == nil {
		f.ng, err = pcapgo.NewNgWriterInterface(f.w, i, pcapgo.NgWriterOptions{SectionInfo: f.section})
	} else {
		id, err = f.ng.AddInterface(i)
	}
	if err != nil {
		return 0, fmt.Errorf("describe %s: %w", i.Name, err)
	}
	return id, nil
}

// receptions are whom a packet that comes in is for.
var receptions = map[uint8]pcapgo.NgEpbFlag{
	unix.PACKET_HOST:      pcapgo.NgEpbFlagReceptionTypeUnicast,
	unix.PACKET_BROADCAST: pcapgo.NgEpbFlagReceptionTypeBroadcast,
	unix.PACKET_MULTICAST: pcapgo.NgEpbFlagReceptionTypeMulticast,
	unix.PACKET_OTHERHOST: pcapgo.NgEpbFlagReceptionTypePromiscuous,
}

func (f *file) write(r *record) error {
	o := pcapgo.NgPacketOptions{Comments: r.comments}
	switch {
	case r.dropped:
	case r.kind == unix.PACKET_OUTGOING:
		o.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}
	default:
		o.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound, Reception: receptions[r.kind]}
	}
	info := gopacket.CaptureInfo{Timestamp: r.time, CaptureLength: len(r.data), Length: r.length, InterfaceIndex: r.id}
	if err := f.ng.WritePacketWithOptions(info, r.data, o); err != nil {
		return fmt.Errorf("write a packet: %w", err)
	}
	return nil
}

// flush hands on what was written.
func (f *file) flush() error {
	if f.ng == nil {
		return nil
	}
	if err := f.ng.Flush(); err != nil {
		return fmt.Errorf("write packets: %w", err)
	}
	return nil
}
