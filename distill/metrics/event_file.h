// Writes TensorBoard event files without protobuf: TFRecord framing, masked CRC-32C and the three Event fields that
// scalars need. Format: tensorflow/core/lib/io/record_writer.h and core/util/event.proto, core/framework/summary.proto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specdec::distill {

uint32_t crc32c(std::string_view bytes);         // Castagnoli, reflected polynomial 0x82F63B78
uint32_t masked_crc32c(std::string_view bytes);  // ((crc >> 15) | (crc << 17)) + 0xA282EAD8
std::string tf_record(std::string_view payload);

// Appends scalars to DIR/events.out.tfevents.<unix>.<host>.<pid>.<n>; each call of scalars() is one write(2) of whole
// records.
class EventFile {
 public:
  // `first_step` > 0 marks a resumed run: TensorBoard then discards earlier scalars of step `first_step` and of later
  // steps. The constructor and scalars() throw Error(kIo).
  EventFile(const std::filesystem::path& directory, int64_t unix_seconds, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void scalars(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& values);
  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view bytes);
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace specdec::distill
