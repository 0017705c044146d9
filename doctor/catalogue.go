package doctor

// heals is the fix of everything that a running agent repairs.
const heals = "start twilld: it repairs this by itself within milliseconds"

// catalogue has the kinds of findings. Their order is that of the constants.
var catalogue = join(pathKinds, cloudKinds, podKinds, weakKinds)

func join(groups ...map[kind]Kind) (all [kinds]Kind) {
	for _, g := range groups {
		for k, c := range g {
			all[k] = c
		}
	}
	return all
}
