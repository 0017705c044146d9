package subnet

// Skip is a peer's record that was left out, with the reason.
type Skip struct {
	Node   string // or the record's own name where no node can be read from it
	Code   Code
	Detail string // one clause, lower case, which may quote the record: `backend-data "{": unexpected end of JSON input`
}

// Code is a class of reasons for which a record is left out. Programs compare codes; the details are for people.
type Code string

// The codes.
const (
	Unreadable       Code = "unreadable"        // the store cannot read the record
	OtherBackend     Code = "other-backend"     // the node uses another backend than this one
	OutsideNetwork   Code = "outside-network"   // its subnet is not inside the network
	Unroutable       Code = "unroutable"        // its underlay address is none that packets can be sent to
	OwnAddress       Code = "own-address"       // its underlay address is this node's
	MixedFamilies    Code = "mixed-families"    // its subnet and its underlay address are of different families
	OffLink          Code = "off-link"          // its underlay address is behind a router, which the backend cannot use
	LocalNetwork     Code = "local-network"     // its subnet contains an address or a network of this node
	DuplicateSubnet  Code = "duplicate-subnet"  // another node holds its subnet
	DuplicateMAC     Code = "duplicate-mac"     // another node holds its VTEP's MAC address
	DuplicateKey     Code = "duplicate-key"     // another node holds its public key
	BackendData      Code = "backend-data"      // what it published for its backend is not what the backend publishes
	DifferentOptions Code = "different-options" // its backend has other options than this node's
)

// meanings are the codes for people.
var meanings = map[Code]string{
	Unreadable:       "its record cannot be read",
	OtherBackend:     "it uses another backend",
	OutsideNetwork:   "its subnet is outside the network",
	Unroutable:       "its underlay address is not one that packets can be sent to",
	OwnAddress:       "its underlay address is this node's own",
	MixedFamilies:    "its subnet and its underlay address are of different families",
	OffLink:          "its underlay address is not on this node's L2 segment",
	LocalNetwork:     "its subnet contains an address or a network of this node, which are no pods",
	DuplicateSubnet:  "its subnet overlaps another node's",
	DuplicateMAC:     "its VTEP MAC is another node's already",
	DuplicateKey:     "its public key is another node's already",
	BackendData:      "its backend data cannot be read",
	DifferentOptions: "its backend has other options than this node's",
}

// Meaning returns what c stands for, as one clause that quotes nothing of any record.
func (c Code) Meaning() string {
	if text, ok := meanings[c]; ok {
		return text
	}
	return "its record cannot be used"
}
