package capture

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/packet"
)

// file is the file that is being written.
type file struct {
	*pcapng
	drops map[string]int // interfaces of what was only seen when it was dropped, by the host
}

func newFile(w io.Writer, about string) (*file, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	word := func(b []byte) string { return unix.ByteSliceToString(b) }
	ng, err := newPcapng(w, text(commentOption, about), text(hardwareOption, word(kernel.Machine[:])),
		text(systemOption, word(kernel.Sysname[:])+" "+word(kernel.Release[:])), text(applicationOption, "twillctl"))
	return &file{pcapng: ng, drops: map[string]int{}}, err
}

// describe adds an interface and returns its number.
func (f *file) describe(name string, ethernet bool) (int, error) {
	link := uint16(linkRaw)
	if ethernet {
		link = linkEthernet
	}
	return f.add(name, link)
}

// dropsOf returns the interface for packets that a host dropped, and that none of its captured devices saw.
func (f *file) dropsOf(host string) (int, error) {
	if id, ok := f.drops[host]; ok {
		return id, nil
	}
	id, err := f.add(host+"/dropped", linkRaw, text(descriptionOption, "what the kernel dropped, and no device that is captured saw"))
	f.drops[host] = id
	return id, err
}

func (f *file) add(name string, link uint16, more ...option) (int, error) {
	id, err := f.addInterface(link, packet.MaxFrame, append(more, text(nameOption, name))...)
	if err != nil {
		return 0, fmt.Errorf("describe %s: %w", name, err)
	}
	return id, nil
}

// receptions are whom a packet that comes in is for.
var receptions = map[uint8]uint32{
	unix.PACKET_HOST:      1 << 2,
	unix.PACKET_MULTICAST: 2 << 2,
	unix.PACKET_BROADCAST: 3 << 2,
	unix.PACKET_OTHERHOST: 4 << 2, // promiscuous
}

func (f *file) write(r *record) error {
	var about []option
	for _, c := range r.comments {
		about = append(about, text(commentOption, c))
	}
	switch {
	case r.dropped:
	case r.kind == unix.PACKET_OUTGOING:
		about = append(about, flags(outbound))
	default:
		about = append(about, flags(inbound|receptions[r.kind]))
	}
	if err := f.addPacket(r.id, r.time, r.data, r.length, about...); err != nil {
		return fmt.Errorf("write a packet: %w", err)
	}
	return nil
}

func flags(value uint32) option { return option{flagsOption, order.AppendUint32(nil, value)} }

// flush hands on what was written.
func (f *file) flush() error {
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write packets: %w", err)
	}
	return nil
}
