// The addresses under which the processes of a run reach each other.
#pragma once

#include <string>

namespace specdec::parallel {

// Returns whether somebody listens at the port.
bool answers(const std::string& host, int port);

// Returns the address at which the other ranks reach this machine, if rank 0 listens at first:port; "" if it is not
// known. Many machines map their own name to the loopback (Debian: 127.0.1.1), so rank 0 may find itself there although
// the others are elsewhere.
std::string address_for_others(const std::string& first, int port);

}  // namespace specdec::parallel
