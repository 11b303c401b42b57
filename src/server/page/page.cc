#include "server/page/page.h"

// The file's bytes, placed by the assembler.
asm(R"(
  .section .rodata
  .global octavo_page_begin
  .global octavo_page_end
octavo_page_begin:
  .incbin ")" OCTAVO_PAGE_FILE R"("
octavo_page_end:
  .byte 0
  .previous
)");

extern "C" const char octavo_page_begin[], octavo_page_end[];

namespace octavo {

std::string_view built_in_page() {
  return {octavo_page_begin, static_cast<size_t>(octavo_page_end - octavo_page_begin)};
}

}  // namespace octavo
