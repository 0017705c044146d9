package kube

import (
	"net/netip"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/twill-net/twill/policy"
)

// pod is a Pod as it was read, with what it may share with others still encoded.
type pod struct {
	metav1.TypeMeta
	policy.Pod // without Labels and Ports

	version  string
	template []byte // a message of the labels and the ports
}

// The fields of a pod's template.
const (
	templateLabel protowire.Number = 1 // a map's entry
	templatePort  protowire.Number = 2 // a ContainerPort
)

// The numbers of the fields that are read, as k8s.io/api/core/v1/generated.proto has them.
const (
	podMetadata, podSpec, podStatus                     = 1, 2, 3
	metaName, metaNamespace, metaUID, metaVersion       = 1, 3, 5, 6
	metaCreated, metaLabels                             = 8, 11
	timeSeconds                                         = 1
	specContainers, specNode, specHostNetwork, specInit = 2, 10, 11, 20
	containerPorts, containerRestart                    = 6, 24
	portName, portNumber, portProtocol                  = 1, 3, 4
	statusPhase, statusPodIPs                           = 1, 12
	podIP                                               = 1
	entryKey, entryValue                                = 1, 2
)

// Reset is called before Unmarshal.
func (p *pod) Reset() { *p = pod{} }

// Unmarshal decodes a Pod; the API's machinery calls it for events of a watch.
func (p *pod) Unmarshal(b []byte) error {
	return p.decode(b, func(text []byte) string { return string(text) })
}

// DeepCopyObject implements runtime.Object.
func (p *pod) DeepCopyObject() runtime.Object { c := *p; return &c }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (p *pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, ResourceVersion: p.version}
}

// decode reads a Pod into p, which is empty but may have room in its template. Text returns what many pods share.
func (p *pod) decode(b []byte, text func([]byte) string) error {
	return fields(b, func(f field) error {
		switch f.number {
		case podMetadata:
			return fields(f.bytes, func(f field) error { return p.decodeMeta(f, text) })
		case podSpec:
			return fields(f.bytes, func(f field) error { return p.decodeSpec(f, text) })
		case podStatus:
			return fields(f.bytes, p.decodeStatus)
		}
		return nil
	})
}

func (p *pod) decodeMeta(f field, text func([]byte) string) error {
	switch f.number {
	case metaName:
		p.Name = string(f.bytes)
	case metaNamespace:
		p.Namespace = text(f.bytes)
	case metaUID:
		p.UID = string(f.bytes)
	case metaVersion:
		p.version = string(f.bytes)
	case metaLabels:
		p.template = f.appendTo(p.template, templateLabel)
	case metaCreated:
		return fields(f.bytes, func(f field) error {
			if f.number == timeSeconds {
				p.Created = time.Unix(int64(f.varint), 0).UTC()
			}
			return nil
		})
	}
	return nil
}

func (p *pod) decodeSpec(f field, text func([]byte) string) error {
	switch f.number {
	case specNode:
		p.Node = text(f.bytes)
	case specHostNetwork:
		p.HostNetwork = f.varint != 0
	case specContainers, specInit:
		return p.decodeContainer(f)
	}
	return nil
}

// decodeContainer adds a container's named ports. Init containers end before the others start, unless they are
// sidecars.
func (p *pod) decodeContainer(container field) error {
	before, sidecar := len(p.template), false
	err := fields(container.bytes, func(f field) error {
		switch f.number {
		case containerPorts:
			named := false
			err := fields(f.bytes, func(f field) error {
				named = named || f.number == portName && len(f.bytes) > 0
				return nil
			})
			if named {
				p.template = f.appendTo(p.template, templatePort)
			}
			return err
		case containerRestart:
			sidecar = string(f.bytes) == "Always"
		}
		return nil
	})
	if container.number == specInit && !sidecar {
		p.template = p.template[:before]
	}
	return err
}

func (p *pod) decodeStatus(f field) error {
	switch f.number {
	case statusPhase:
		p.Ended = string(f.bytes) == "Succeeded" || string(f.bytes) == "Failed"
	case statusPodIPs:
		return fields(f.bytes, func(f field) error {
			if f.number != podIP {
				return nil
			}
			if addr, err := netip.ParseAddr(string(f.bytes)); err == nil {
				p.Addrs = append(p.Addrs, addr.Unmap())
			}
			return nil
		})
	}
	return nil
}

// decodeTemplate decodes what decode found to be whole.
func decodeTemplate(b []byte, text func([]byte) string) (all labels.Set, ports []policy.Port) {
	_ = fields(b, func(f field) error {
		if f.number == templatePort {
			ports = append(ports, decodePort(f.bytes))
			return nil
		}
		key, value, _ := decodeEntry(f.bytes)
		if all == nil {
			all = labels.Set{}
		}
		all[text(key)] = string(value)
		return nil
	})
	return all, ports
}

// decodeEntry decodes an entry of a map.
func decodeEntry(b []byte) (key, value []byte, err error) {
	err = fields(b, func(f field) error {
		switch f.number {
		case entryKey:
			key = f.bytes
		case entryValue:
			value = f.bytes
		}
		return nil
	})
	return key, value, err
}

func decodePort(b []byte) policy.Port {
	var p policy.Port
	_ = fields(b, func(f field) error {
		switch f.number {
		case portName:
			p.Name = string(f.bytes)
		case portNumber:
			p.Number = uint16(f.varint)
		case portProtocol:
			p.Protocol = policy.Protocol(f.bytes)
		}
		return nil
	})
	if p.Protocol == "" {
		p.Protocol = policy.TCP
	}
	return p
}

// field is one of a message: its bytes or its number.
type field struct {
	number protowire.Number
	bytes  []byte
	varint uint64
}

// appendTo appends the bytes to a message as its field with a number.
func (f field) appendTo(b []byte, number protowire.Number) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), f.bytes)
}

// fields calls f with every field of a message that has bytes or is a varint. The bytes are b's.
func fields(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		one := field{number: number}
		switch kind {
		case protowire.BytesType:
			one.bytes, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			one.varint, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(one); err != nil {
			return err
		}
	}
	return nil
}
