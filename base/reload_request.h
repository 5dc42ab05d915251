// The request, by a signal, to read files again that a running server uses (keys, certificates).
#pragma once

namespace specdec {

void request_reload();  // cli's signal handler calls it
// Returns whether a reload was requested since the last call.
bool take_reload_request();

}  // namespace specdec
