// Passes on a signal that asks a running server to read its files (keys, certificates) again.
#pragma once

namespace specdec {

void request_reload();  // cli's signal handler calls it
// Returns whether a reload was requested since the last call.
bool take_reload_request();

}  // namespace specdec
