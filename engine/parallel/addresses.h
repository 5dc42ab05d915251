// Finds the addresses at which the processes of a run reach each other.
#pragma once

#include <string>

namespace specdec::parallel {

// Returns whether a process listens at this port of the host.
bool answers(const std::string& host, int port);

// Returns the address at which the other ranks reach this machine, or "" if it is unknown. Rank 0 listens at
// first:port. Many machines map their own name to the loopback address (Debian: 127.0.1.1). If `first` is such a name,
// returns another address of this machine, because ranks on other machines cannot use a loopback address.
std::string address_for_others(const std::string& first, int port);

}  // namespace specdec::parallel
