package mysqlserver

import "errors"

var (
	// ErrNotFound is returned when there is no server of the wanted flavour on
	// this machine. The text says how to get one.
	ErrNotFound = errors.New("mysqlserver: no server found")
	// ErrInUse is returned when a live server holds the directory.
	ErrInUse = errors.New("mysqlserver: data directory in use")
	// ErrPortTaken is returned when something else listens on Config.Port.
	ErrPortTaken = errors.New("mysqlserver: port taken")
	// ErrWrongFlavour is returned when a directory was made by a server of the
	// other flavour, or a binary is not of the wanted one.
	ErrWrongFlavour = errors.New("mysqlserver: wrong flavour")
)
