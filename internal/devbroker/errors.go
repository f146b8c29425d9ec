package devbroker

import "errors"

// ErrPortTaken is returned when something else listens on Config.Port.
var ErrPortTaken = errors.New("devbroker: port taken")
