package netstate

// comparableObject holds at compile time that every Object can be compared with ==: a slice or map in one of
// these structs does not compile.
type comparableObject interface {
	Object
	comparable
}

func mustCompare[T comparableObject]() {}

var (
	_ = mustCompare[VXLAN]
	_ = mustCompare[Bridge]
	_ = mustCompare[OtherLink]
	_ = mustCompare[Tun]
	_ = mustCompare[Tunnel]
	_ = mustCompare[WireGuard]
	_ = mustCompare[Listener]
	_ = mustCompare[Peer]
	_ = mustCompare[Policy]
	_ = mustCompare[Sysctl]
	_ = mustCompare[Addr]
	_ = mustCompare[Neigh]
	_ = mustCompare[FDB]
	_ = mustCompare[Route]
	_ = mustCompare[Chain]
)
