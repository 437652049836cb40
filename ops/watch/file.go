package watch

import "github.com/seed83679106/weir"

// A File is a rules file that is reloaded when it changes, such as a *config.File. Packages admin,
// weirprom and weirotel report the values that its methods return.
type File interface {
	// Version returns a string that identifies the current content.
	Version() string

	// Reloads returns how many reloads succeeded and how many failed.
	Reloads() (loaded, failed int64)

	// Err returns the error of the last reload, or nil if that reload succeeded. While Err is not
	// nil, the current rules are older than the file.
	Err() error

	// Rules returns the current rules.
	Rules() []weir.Rule
}
