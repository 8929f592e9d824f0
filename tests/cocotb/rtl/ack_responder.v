// The smallest RoCEv2 responder: it acknowledges SENDs and WRITEs that come in order, NAKs a gap once, answers what it
// has had before again, and writes nothing anywhere. IPv4, no Ethernet header, 64-bit AXI4-Stream, one packet at a time.
//
// BUG plants one mistake: 1 an ACK with the PSN after the last, 2 an MSN that stands still, 3 an ICRC with the time to
// live left in, 4 it goes on behind a gap that it NAKed, 5 an ACK of another opcode's length, 6 a reserved syndrome.
module ack_responder #(
    parameter BUG = 0
) (
    input wire clk,
    input wire rst,
    input wire [23:0] first_psn,   // of the requester
    input wire [23:0] remote_qpn,
    input wire [63:0] rx_tdata,
    input wire [7:0] rx_tkeep,
    input wire rx_tlast,
    input wire rx_tvalid,
    output wire rx_tready,
    output wire [63:0] tx_tdata,
    output wire [7:0] tx_tkeep,
    output wire tx_tlast,
    output wire tx_tvalid,
    input wire tx_tready
);
    localparam TAKE = 0, LOOK = 1, SUM = 2, HASH = 3, SEAL = 4, GIVE = 5;
    localparam ACK_BYTES = 48, BODY = 44;

    reg [7:0] head [0:63];         // the beginning of the packet, headers and all
    reg [7:0] ack [0:63];
    reg [2:0] state;
    reg [11:0] beat;
    reg [5:0] at;
    reg [23:0] epsn, msn;
    reg started, naked;
    reg [31:0] crc;
    integer i;

    wire [7:0] opcode = head[28];
    wire [23:0] psn = {head[37], head[38], head[39]};
    wire [23:0] ahead = psn - epsn;
    wire ends = opcode == 8'h02 || opcode == 8'h03 || opcode == 8'h04 || opcode == 8'h05 ||
                opcode == 8'h08 || opcode == 8'h09 || opcode == 8'h0A || opcode == 8'h0B;
    wire request = opcode <= 8'h0B;
    wire [23:0] msn_now = BUG == 2 ? 24'd0 : msn;

    assign rx_tready = state == TAKE && !rst;
    assign tx_tvalid = state == GIVE;
    assign tx_tlast = at == ACK_BYTES - 8;
    assign tx_tkeep = 8'hFF;
    assign tx_tdata = {ack[at + 7], ack[at + 6], ack[at + 5], ack[at + 4], ack[at + 3], ack[at + 2], ack[at + 1], ack[at]};

    // One byte into the CRC-32 of Ethernet, lowest bit first.
    function [31:0] crc_with(input [31:0] old, input [7:0] data);
        integer k;
        begin
            crc_with = old ^ {24'd0, data};
            for (k = 0; k < 8; k = k + 1)
                crc_with = crc_with[0] ? (crc_with >> 1) ^ 32'hEDB88320 : crc_with >> 1;
        end
    endfunction

    // What the ICRC sees: eight bytes of ones first, then the packet with what routers change set to ones.
    function [7:0] covered(input [5:0] place);
        case (place)
            1: covered = 8'hFF;                     // type of service
            8: covered = BUG == 3 ? ack[8] : 8'hFF; // time to live
            10, 11: covered = 8'hFF;                // header checksum
            26, 27: covered = 8'hFF;                // UDP checksum
            32: covered = 8'hFF;                    // reserved byte of the BTH
            default: covered = ack[place];
        endcase
    endfunction

    // Header checksum of 20 bytes.
    function [15:0] fold(input [31:0] total);
        reg [31:0] once;
        begin
            once = {16'd0, total[31:16]} + {16'd0, total[15:0]};
            fold = ~(once[15:0] + once[31:16]);
        end
    endfunction

    reg [31:0] total;
    always @* begin
        total = 0;
        for (i = 0; i < 20; i = i + 2)
            if (i != 10)
                total = total + {16'd0, ack[i], ack[i + 1]};
    end

    task answer(input [23:0] with_psn, input [7:0] syndrome);
        begin
            for (i = 0; i < 64; i = i + 1)
                ack[i] <= 0;
            ack[0] <= 8'h45;
            ack[3] <= ACK_BYTES;
            ack[6] <= 8'h40;
            ack[8] <= 8'd64;
            ack[9] <= 8'd17;
            for (i = 0; i < 4; i = i + 1) begin
                ack[12 + i] <= head[16 + i];
                ack[16 + i] <= head[12 + i];
            end
            {ack[20], ack[21]} <= 16'hC000;
            {ack[22], ack[23]} <= 16'd4791;
            ack[25] <= ACK_BYTES - 20;
            ack[28] <= BUG == 5 ? 8'h12 : 8'h11;
            {ack[30], ack[31]} <= {head[30], head[31]};
            {ack[33], ack[34], ack[35]} <= remote_qpn;
            {ack[37], ack[38], ack[39]} <= with_psn;
            ack[40] <= syndrome;
            {ack[41], ack[42], ack[43]} <= msn_now + (syndrome < 8'h20 && ends && ahead == 0 && BUG != 2);
            state <= SUM;
        end
    endtask

    always @(posedge clk) begin
        if (rst) begin
            state <= TAKE;
            beat <= 0;
            started <= 0;
            naked <= 0;
            msn <= 0;
            epsn <= 0;
        end else begin
            if (!started) begin
                epsn <= first_psn;
                started <= 1;
            end
            case (state)
                TAKE: if (rx_tvalid) begin
                    if (beat < 8)
                        for (i = 0; i < 8; i = i + 1)
                            head[beat * 8 + i] <= rx_tdata[i * 8 +: 8];
                    beat <= rx_tlast ? 12'd0 : beat + 1'b1;
                    if (rx_tlast)
                        state <= LOOK;
                end
                LOOK: begin
                    state <= TAKE;
                    if (request && ahead == 0) begin
                        epsn <= epsn + 1'b1;
                        naked <= 0;
                        if (ends)
                            msn <= msn + 1'b1;
                        if (head[36][7])
                            answer(BUG == 1 ? psn + 1'b1 : psn, BUG == 6 ? 8'h5F : 8'h1F);
                    end else if (request && ahead[23]) begin
                        answer(epsn - 1'b1, 8'h1F);
                    end else if (request && !naked) begin
                        naked <= 1;
                        if (BUG == 4)
                            epsn <= psn + 1'b1;
                        answer(epsn, 8'h60);
                    end
                end
                SUM: begin
                    {ack[10], ack[11]} <= fold(total);
                    crc <= 32'hFFFFFFFF;
                    at <= 0;
                    state <= HASH;
                    beat <= 0;
                end
                HASH: begin
                    if (beat < 8) begin
                        crc <= crc_with(crc, 8'hFF);
                        beat <= beat + 1'b1;
                    end else begin
                        crc <= crc_with(crc, covered(at));
                        at <= at + 1'b1;
                        if (at == BODY - 1)
                            state <= SEAL;
                    end
                end
                SEAL: begin
                    {ack[47], ack[46], ack[45], ack[44]} <= ~crc;
                    at <= 0;
                    beat <= 0;
                    state <= GIVE;
                end
                GIVE: if (tx_tready) begin
                    at <= at + 6'd8;
                    if (tx_tlast)
                        state <= TAKE;
                end
                default: state <= TAKE;
            endcase
        end
    end
endmodule
