// Sends and receives blocks of a known size over a blocking stream socket.
#pragma once

#include <cstddef>

namespace specdec {

// Send or receive exactly `size` bytes. Return false if the other side is gone or the socket fails; then a part may
// have been sent or received. No signal is raised.
bool send_all(int socket, const void* data, size_t size);
bool receive_all(int socket, void* data, size_t size);

}  // namespace specdec
