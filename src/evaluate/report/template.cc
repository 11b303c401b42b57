#include "evaluate/report/template.h"

// The file's bytes, placed by the assembler.
asm(R"(
  .section .rodata
  .global octavo_report_begin
  .global octavo_report_end
octavo_report_begin:
  .incbin ")" OCTAVO_REPORT_FILE R"("
octavo_report_end:
  .byte 0
  .previous
)");

extern "C" const char octavo_report_begin[], octavo_report_end[];

namespace octavo {

std::string_view report_template() {
  return {octavo_report_begin, static_cast<size_t>(octavo_report_end - octavo_report_begin)};
}

}  // namespace octavo
