// Finds the addresses at which the processes of a run reach each other.
#pragma once

#include <string>

namespace specdec::parallel {

// Returns whether a process listens at this port of the host.
bool answers(const std::string& host, int port);

// Returns the address at which the other ranks reach this machine, given that rank 0 listens at first:port; "" if it is
// unknown. Many machines map their own name to the loopback address (Debian: 127.0.1.1), so rank 0 may resolve its name
// to loopback although the other ranks are on other machines.
std::string address_for_others(const std::string& first, int port);

}  // namespace specdec::parallel
