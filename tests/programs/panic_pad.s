# The code after that of panic.rs.
.text
.globl last_pad
last_pad:
.fill 3 * 1024 * 1024, 1, 0xc3
.section .note.GNU-stack,"",@progbits
