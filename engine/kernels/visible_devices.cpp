#include "engine/kernels/visible_devices.h"

#include <cstdlib>

namespace specdec::kernels {

std::string visible_devices_text() {
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!value) return "CUDA_VISIBLE_DEVICES is not set";
  std::string text = value;
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return "CUDA_VISIBLE_DEVICES=" + text;
}

std::string no_such_device(int index, int count) {
  return "no CUDA device " + std::to_string(index) + ": " +
         (count == 1 ? "1 is visible, cuda:0"
                     : std::to_string(count) + " are visible, cuda:0 to cuda:" + std::to_string(count - 1)) +
         " (" + visible_devices_text() + ")";
}

}  // namespace specdec::kernels
