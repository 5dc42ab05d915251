#include "text/parquet_rows.h"

#include "text/rust_error.h"

namespace specdec::text {

void parquet_rows(const std::string& file, const std::function<void(std::string_view, uint64_t)>& take) {
  const auto sink = [](void* context, const uint8_t* lines, size_t size, uint64_t stored_done) -> int32_t {
    (*static_cast<const std::function<void(std::string_view, uint64_t)>*>(context))(
        {reinterpret_cast<const char*>(lines), size}, stored_done);
    return 0;
  };
  sd_bytes message{};
  check(sd_parquet_rows(reinterpret_cast<const uint8_t*>(file.data()), file.size(), sink,
                        const_cast<void*>(static_cast<const void*>(&take)), &message),
        message, "", ErrorKind::kData);
}

}  // namespace specdec::text
