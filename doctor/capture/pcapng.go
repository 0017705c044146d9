package capture

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"
)

// Blocks of pcapng (draft-ietf-opsawg-pcapng), and their options.
const (
	sectionBlock, interfaceBlock, packetBlock = 0x0a0d0d0a, 1, 6

	commentOption                                          = 1
	hardwareOption, systemOption, applicationOption        = 2, 3, 4 // of a section
	nameOption, descriptionOption, resolutionOption        = 2, 3, 9 // of an interface
	flagsOption                                            = 2       // of a packet
	inbound, outbound                               uint32 = 1, 2
)

// Link types of interfaces: frames with Ethernet's header, and IP packets.
const linkEthernet, linkRaw = 1, 101

// order of bytes is the writer's to choose: a section says which it is.
var order = binary.LittleEndian

// byteOrder begins a section, so that readers see its order of bytes.
const byteOrder = 0x1a2b3c4d

// nanoseconds is the resolution of an interface's times.
var nanoseconds = []byte{9}

// option is a value that a block may have. Empty ones are left out.
type option struct {
	code  uint16
	value []byte
}

func text(code uint16, value string) option { return option{code, []byte(value)} }

// pcapng writes one section. The writer of gopacket would bring 1.7 MB of decoders, which nothing else needs here, and
// which each first build would compile; its reader judges this one in a test.
type pcapng struct {
	w          *bufio.Writer
	interfaces int
}

func newPcapng(w io.Writer, about ...option) (*pcapng, error) {
	p := &pcapng{w: bufio.NewWriter(w)}
	head := order.AppendUint32(nil, byteOrder)
	head = order.AppendUint32(head, 1)       // version 1.0
	head = order.AppendUint64(head, 1<<64-1) // a section of unknown length
	return p, p.block(sectionBlock, head, about)
}

// addInterface describes a device and returns its number. Its times are nanoseconds.
func (p *pcapng) addInterface(link uint16, maxLength int, about ...option) (int, error) {
	head := order.AppendUint32(nil, uint32(link))
	head = order.AppendUint32(head, uint32(maxLength))
	p.interfaces++
	return p.interfaces - 1, p.block(interfaceBlock, head, append(about, option{resolutionOption, nanoseconds}))
}

// addPacket writes what was captured of a packet that had so many bytes.
func (p *pcapng) addPacket(id int, at time.Time, data []byte, length int, about ...option) error {
	when := uint64(at.UnixNano())
	head := order.AppendUint32(nil, uint32(id))
	head = order.AppendUint32(head, uint32(when>>32))
	head = order.AppendUint32(head, uint32(when))
	head = order.AppendUint32(head, uint32(len(data)))
	head = order.AppendUint32(head, uint32(length))
	return p.block(packetBlock, pad(append(head, data...)), about)
}

// block writes a block, which has its length at both ends. Everything fills words of four bytes.
func (p *pcapng) block(kind uint32, body []byte, about []option) error {
	some := false
	for _, o := range about {
		if len(o.value) == 0 {
			continue
		}
		some = true
		value := o.value[:min(len(o.value), 1<<16-1)]
		body = order.AppendUint16(body, o.code)
		body = order.AppendUint16(body, uint16(len(value)))
		body = pad(append(body, value...))
	}
	if some {
		body = order.AppendUint32(body, 0) // the end of the options
	}
	length := uint32(len(body) + 12)
	block := order.AppendUint32(nil, kind)
	block = append(order.AppendUint32(block, length), body...)
	_, err := p.w.Write(order.AppendUint32(block, length))
	return err
}

// pad fills the last word. What it is given begins with a word.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
