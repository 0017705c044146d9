// Package cnierr makes errors that a container runtime tells apart by their code.
package cnierr

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// New returns an error with a code of the CNI specification.
func New(code uint, format string, values ...any) error {
	return types.NewError(code, fmt.Sprintf(format, values...), "")
}

// Code returns the code of err, 0 if it has none.
func Code(err error) uint {
	if coded := (*types.Error)(nil); errors.As(err, &coded) {
		return coded.Code
	}
	return 0
}

// Join returns err together with rollback, the error of undoing what came before err. The code of err stays.
func Join(err, rollback error) error {
	if rollback == nil {
		return err
	}
	var coded *types.Error
	if errors.As(err, &coded) {
		return types.NewError(coded.Code, coded.Msg, rollback.Error())
	}
	return errors.Join(err, rollback)
}
