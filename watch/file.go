package watch

import "github.com/seed83679106/weir"

// A File is a file of rules that is loaded again when it changes, such as a *config.File.
// Packages admin, weirprom and weirotel show what it returns.
type File interface {
	// Version returns a name of the content that is in force.
	Version() string

	// Reloads returns how often the file was loaded again, and how often that failed.
	Reloads() (loaded, failed int64)

	// Err returns the error of the last reload, so that the rules in force are not those of
	// the file, or nil.
	Err() error

	// Rules returns the rules in force.
	Rules() []weir.Rule
}
